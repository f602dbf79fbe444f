"""For the tests of your jobs and handlers: the whole flow in memory, on a clock you move.

A scheduled job:

    bench = Workbench(nightly_report)
    result = bench.run(nightly_report, at="2026-11-29T03:00:00Z")
    assert result.outcome == "succeeded"
    assert bench.blobs()["reports/2026-11-29.csv"].startswith(b"country,")

A handler, which is delivered its message twice and has its effect once:

    bench = Workbench()
    assert bench.deliver(send_invoice, {"invoice_id": 7}) == Complete()
    assert bench.deliver(send_invoice, {"invoice_id": 7}, delivery_count=2) == Complete(duplicate=True)
    assert [row["name"] for row in bench.effects(send_invoice)] == ["invoice 7"]
    assert [sent.json for sent in bench.sent] == [{"mail": 7}]

What repeats when a process is killed at any of its storage calls:

    crash_everywhere(nightly_report, prepare=lambda bench: bench.put("orders.csv", "1001,TR")).check()

Imported by users' tests; imports everything below it, and of itself the modules that the names come from.
"""

from runonce.testing.crashes import Crash, CrashReport, crash_everywhere
from runonce.testing.host import Host
from runonce.testing.proxy import (
    BUSY,
    CUT_REPLY,
    DROP_REPLY,
    DROP_REQUEST,
    FAILED_AFTER_APPLY,
    HANG,
    Fault,
    Proxy,
    StorageProxy,
)
from runonce.testing.workbench import ManualClock, MemorySender, Sent, Workbench
from runonce.testing.worlds import Marks
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

__all__ = [
    "BUSY",
    "CUT_REPLY",
    "DROP_REPLY",
    "DROP_REQUEST",
    "FAILED_AFTER_APPLY",
    "HANG",
    "Complete",
    "Crash",
    "CrashReport",
    "DeadLetter",
    "Fault",
    "Host",
    "ManualClock",
    "Marks",
    "MemorySender",
    "Proxy",
    "Reschedule",
    "Sent",
    "Settlement",
    "StorageProxy",
    "Workbench",
    "crash_everywhere",
]
