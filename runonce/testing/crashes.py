"""Kill a job or a handler at each of its storage calls, let another host recover it, and say what repeats.

Every death is a world of its own: fresh stores in memory, a host that ends at that call, right before or right after
it is carried out, and another that goes on as hosts do. Nothing of a dead process happens any more. What took effect
in the end is compared with what takes effect when nobody dies.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from runonce.runs.definition import ScheduledJob
from runonce.testing.faults import Boundary, Fault
from runonce.testing.worlds import COMPLETED, JobScene, Marks, MessageScene

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from runonce.messages.definition import Handler
    from runonce.testing.workbench import Workbench
    from runonce.testing.worlds import Scene, Seen


@dataclass(frozen=True, slots=True)
class Crash:
    """A death at one storage call, and what there was in the end."""

    call: int
    """Which call, from 1."""
    name: str
    """What it was, such as `runs.commit` or `blobs.write report.csv`."""
    applied: bool
    """Whether it was carried out before the process died."""
    outcome: str
    """How the run or the message ended once another host had recovered it."""
    repeated: Mapping[str, int]
    """Effects that took place more often than without a crash, and how often."""
    missing: Sequence[str]
    """Effects that there are without a crash, and not now."""
    changed: Sequence[str]
    """Blobs, rows and ledger entries whose content is not the one without a crash."""

    def troubles(self, may_repeat: Collection[str] = ()) -> list[str]:
        """What is not as it is without a crash, in words."""
        found = [] if self.outcome == COMPLETED else [f"ended as {self.outcome}"]
        found += [f"{effect}: {n} times" for effect, n in self.repeated.items() if effect not in may_repeat]
        found += [f"{effect}: missing" for effect in self.missing]
        return found + [f"{effect}: changed" for effect in self.changed if effect not in may_repeat]


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What came of every death; as text, a line for each storage call."""

    name: str
    """Of the job or handler."""
    effects: Mapping[str, int]
    """What takes effect without a crash, and how often."""
    crashes: Sequence[Crash]

    @property
    def repeated(self) -> dict[str, list[str]]:
        """The effects that some death repeats, with those deaths: `{"charge 1001": ["before 4 runs.commit"]}`."""
        found: dict[str, list[str]] = {}
        for crash in self.crashes:
            for effect in crash.repeated:
                when = "after" if crash.applied else "before"
                found.setdefault(effect, []).append(f"{when} {crash.call} {crash.name}")
        return found

    def check(self, may_repeat: Collection[str] = ()) -> None:
        """Return if every death ends as no death does, but for effects that may be repeated.

        Args:
            may_repeat: Their names, for those that do no harm twice.

        Raises:
            AssertionError: Some death repeats, loses or changes another effect; the message is the report.
        """
        if any(crash.troubles(may_repeat) for crash in self.crashes):
            raise AssertionError(str(self))

    def __str__(self) -> str:
        calls = len(self.crashes) // 2
        lines = [
            f"{self.name}: killed before and after each of its {calls} storage calls, and recovered elsewhere",
            f"  without a crash: {', '.join(self.effects) or 'no effects'}",
        ]
        for crash in self.crashes:
            told = "; ".join(crash.troubles()) or "the same"
            lines.append(f"  {'after ' if crash.applied else 'before'} {crash.call} {crash.name}: {told}")
        return "\n".join(lines)


@overload
def crash_everywhere(
    job: ScheduledJob,
    *,
    at: datetime | str | None = None,
    prepare: Callable[[Workbench], object] = ...,
    marks: Marks | None = None,
) -> CrashReport: ...
@overload
def crash_everywhere(
    job: Handler,
    body: Any,
    *,
    prepare: Callable[[Workbench], object] = ...,
    marks: Marks | None = None,
) -> CrashReport: ...
def crash_everywhere(
    job: ScheduledJob | Handler,
    body: Any = None,
    *,
    at: datetime | str | None = None,
    prepare: Callable[[Workbench], object] = lambda _: None,
    marks: Marks | None = None,
) -> CrashReport:
    """Kill a job at each of its storage calls, before and after it is carried out, and tell what repeats.

    Of a handler, sending a follow-up and settling the message are such calls too. Seen as effects are: marks;
    ledger entries; the rows of `message.commit`; blobs, where one that is written again as it was counts once; and
    messages, where one that is sent again with the same id counts once, for its handler drops the second.

    Args:
        job: What `@scheduled` or `@handler` made of the function, sync or async.
        body: Of a handler: the message's body, as for `Workbench.deliver`.
        at: Of a scheduled job: the fire time (a datetime, or ISO 8601 text). Default: its first one of 2026. No other
            fire time comes, however long the recovery takes.
        prepare: Is called with each world's bench before anything runs, such as to `put` the blobs that are read.
        marks: What the job's effects elsewhere were noted with; it is emptied before each world.

    Raises:
        ValueError: It does not succeed even without a crash.
    """
    noted = marks or Marks()
    scene: Scene
    if isinstance(job, ScheduledJob):
        scene = JobScene(job, at, prepare, noted)
    else:
        scene = MessageScene(job, body, prepare, noted)
    with _quietly():
        alive = Boundary()
        plain = scene.play(alive)
        if plain.outcome != COMPLETED:
            raise ValueError(
                f"{job.name} does not succeed when nobody kills it: {plain.outcome}. Give it what it needs, as by "
                f"prepare=lambda bench: bench.put(NAME, DATA)."
            ) from plain.error
        crashes = [
            _crash(scene, plain, call, name, fault)
            for call, name in enumerate(alive.calls, 1)
            for fault in (Fault.DEATH_BEFORE, Fault.DEATH_AFTER)
        ]
    return CrashReport(job.name, dict(plain.effects), crashes)


def _crash(scene: Scene, plain: Seen, call: int, name: str, fault: Fault) -> Crash:
    first = Boundary()
    first.at(call, fault)
    seen = scene.play(first)
    both = plain.contents.keys() & seen.contents.keys()
    return Crash(
        call,
        name,
        applied=fault is Fault.DEATH_AFTER,
        outcome=seen.outcome,
        repeated={effect: n for effect, n in seen.effects.items() if n > plain.effects[effect]},
        missing=[effect for effect, n in plain.effects.items() if n > seen.effects[effect]],
        changed=sorted(effect for effect in both if plain.contents[effect] != seen.contents[effect]),
    )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Dozens of deaths are no news for a log."""
    log = logging.getLogger("runonce")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)
