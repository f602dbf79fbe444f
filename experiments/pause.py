"""A holder that is paused past the end of its lease, and wakes up while another holds it."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

from experiments.effects import CLOCK
from experiments.lab import Finding
from experiments.replica import PAUSED, REPORT
from runonce.runs.rows import key_range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.lab import Lab

NOTICED_WITHIN = 1.0
STARTING = 5.0


def run(lab: Lab) -> list[Finding]:
    """Carry it out."""
    if sys.platform == "win32":
        seen = "skipped: Windows cannot pause a process (it has no SIGSTOP)"
        return [
            Finding(
                "a holder is paused past its lease", "what it writes afterwards is refused", seen, ok=None
            )
        ]
    lease, tick = lab.settings.lease.duration, lab.settings.recovery_interval
    lab.say("starting the replica that will be paused")
    (old,) = lab.start("holder")
    token = int(old.hear("holding"))
    lab.mark(old, "h", "holds the lease")
    lab.say("starting another one")
    lab.start("report", environ={PAUSED: str(old.pid)})
    old.process.send_signal(signal.SIGSTOP)
    paused = CLOCK.elapsed()
    lab.mark(old, "z", "is paused (SIGSTOP); its lease runs out")
    lab.say(f"paused; the other waits for the lease to end ({lease} s)")
    taken = lab.wait(
        "a takeover", 2 * (lease + tick) + STARTING, lambda: next(iter(lab.effects.read()), None)
    )
    lab.wait("the report", STARTING + 10, lambda: entries(lab) == {"report": token + 1})
    lab.say("taken over; waking the first one up")
    woken = CLOCK.elapsed()
    old.process.send_signal(signal.SIGCONT)
    lab.mark(old, "w", "wakes up; what it writes is refused")
    noticed = float(old.hear("noticed")) - woken
    old.tell("go on")
    refused: dict[str, str] = json.loads(old.hear("wrote"))
    item = lab.stores.blobs.read(f"{lab.settings.namespace}/{REPORT}")
    intact = (
        item is not None
        and item.data == f"written under token {token + 1}".encode()
        and entries(lab) == {"report": token + 1}
    )
    return [
        Finding(
            f"SIGSTOP of a holder; SIGCONT after {woken - paused:.1f} s, when another had taken over",
            f"it knows that its lease is lost within {NOTICED_WITHIN:g} s of waking",
            f"knew after {noticed * 1000:.0f} ms (taken over after {taken.at - paused:.1f} s)",
            ok=noticed <= NOTICED_WITHIN,
        ),
        judge(refused, token, intact=intact),
    ]


def judge(refused: Mapping[str, str], token: int, *, intact: bool) -> Finding:
    """What became of the late writes, against what is expected."""
    count = sum(error == "Fenced" for error in refused.values())
    passed = [name for name, error in refused.items() if error != "Fenced"]
    through = f"; not refused: {', '.join(passed)}" if passed else ""
    left = "the other's results are as it left them" if intact else "the other's results were changed"
    return Finding(
        "the same holder without that check: it writes on",
        f"all {len(refused)} writes refused by its fencing token ({', '.join(refused)})",
        f"{count} of {len(refused)} refused, token {token} being older than {token + 1}{through}; {left}",
        ok=not passed and intact,
    )


def entries(lab: Lab) -> dict[str, int]:
    """The report's ledger: each entry's token."""
    rows = lab.stores.runs.scan(lab.settings.namespace, *key_range("entry", "report"))
    return {str(row.values["key"]): int(row.values["token"]) for row in rows}
