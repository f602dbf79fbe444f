"""The jobs, on stores in memory: no emulator, no settings, a moment each."""

from jobs.greet import greet
from jobs.heartbeat import heartbeat

from runonce.testing import Complete, Workbench

MINUTE = "2026-01-01T12:00:00Z"


def test_each_minute_is_kept_once() -> None:
    """A second host at the same fire time has nothing to do; the next minute has."""
    bench = Workbench(heartbeat)
    assert bench.run(heartbeat, at=MINUTE).outcome == "succeeded"
    assert bench.run(heartbeat, at=MINUTE).outcome == "skipped"
    assert bench.run(heartbeat, at="2026-01-01T12:01:00Z").outcome == "succeeded"
    assert bench.blobs() == {"heartbeat.txt": b"2026-01-01T12:01:00+00:00"}


def test_a_message_that_comes_twice_greets_once() -> None:
    """The second delivery is completed without an effect."""
    bench = Workbench()
    assert bench.deliver(greet, {"name": "Ada"}) == Complete()
    assert bench.deliver(greet, {"name": "Ada"}) == Complete(duplicate=True)
    (row,) = bench.effects(greet)
    assert row["text"] == "Hello, Ada!"
