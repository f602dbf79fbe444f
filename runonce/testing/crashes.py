"""Kill a job or a handler at each of its storage calls, let another host recover it, and say what repeats.

The host that recovers it is killed too, at calls of its own, and the next one lives. Every death, or pair of deaths,
is a world of its own: fresh stores in memory, a host that ends at that call, right before or right after it is carried
out, and another that goes on as hosts do. Nothing of a dead process happens any more. What took effect in the end is
compared with what takes effect when nobody dies.
"""

from __future__ import annotations

import contextlib
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from runonce.runs.definition import ScheduledJob
from runonce.testing.faults import Boundary, Fault
from runonce.testing.worlds import COMPLETED, JobScene, Marks, MessageScene

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from runonce.messages.definition import Handler
    from runonce.testing.workbench import Workbench
    from runonce.testing.worlds import Scene, Seen

PAIRS = 200
"""Pairs of deaths that are tried, at most."""
READS = ("get", "scan", "scan_partitions", "held", "held_in", "read", "head", "names")
"""Calls after which storage is as it was."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A death at one storage call, or one and then another, and what there was in the end."""

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
    second: str = ""
    """Where the host that recovered it died too, such as `before 3 runs.commit`; empty where it lived."""

    @property
    def where(self) -> str:
        """Such as `before 4 runs.commit`, or `before 4 runs.commit, then before 3 runs.commit`."""
        first = _death(self.call, self.name, applied=self.applied)
        return f"{first}, then {self.second}" if self.second else first

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
    """One for each single death."""
    second: Sequence[Crash] = ()
    """Those in which the host that recovered it died as well, at one of its own calls."""
    pairs: int = 0
    """How many pairs of deaths there are; `second` has at most 200, drawn evenly."""

    @property
    def repeated(self) -> dict[str, list[str]]:
        """The effects that some death repeats, with those deaths: `{"charge 1001": ["before 4 runs.commit"]}`.

        Pairs of deaths are named for what no single death repeats.
        """
        found, more = _repeated(self.crashes), _repeated(self.second)
        return found | {effect: where for effect, where in more.items() if effect not in found}

    def check(self, may_repeat: Collection[str] = ()) -> None:
        """Return if every death ends as no death does, but for effects that may be repeated.

        Args:
            may_repeat: Their names, for those that do no harm twice.

        Raises:
            AssertionError: Some death repeats, loses or changes another effect; the message is the report.
        """
        if any(crash.troubles(may_repeat) for crash in (*self.crashes, *self.second)):
            raise AssertionError(str(self))

    def __str__(self) -> str:
        calls = len(self.crashes) // 2
        lines = [
            f"{self.name}: killed before and after each of its {calls} storage calls, and recovered elsewhere",
            f"  without a crash: {', '.join(self.effects) or 'no effects'}",
        ]
        for crash in self.crashes:
            when = "after " if crash.applied else "before"
            lines.append(f"  {when} {crash.call} {crash.name}: {_told(crash)}")
        known = set().union({(COMPLETED, "")}, *map(_kinds, self.crashes))
        news = [crash for crash in self.second if _kinds(crash) - known]
        lines.append(
            f"  killed again in the recovery, {len(self.second)} of {self.pairs} pairs of deaths: "
            + (f"{len(news)} with new trouble" if news else "nothing new")
        )
        return "\n".join([*lines, *(f"  {crash.where}: {_told(crash)}" for crash in news)])


def _death(call: int, name: str, *, applied: bool) -> str:
    return f"{'after' if applied else 'before'} {call} {name}"


def _kinds(crash: Crash) -> set[tuple[str, str]]:
    """What a crash came to, without how often and where."""
    of = {"repeated": crash.repeated, "missing": crash.missing, "changed": crash.changed}
    kinds = {(kind, effect) for kind, effects in of.items() for effect in effects}
    return kinds | {(crash.outcome.partition(" (")[0], "")}


def _told(crash: Crash) -> str:
    return "; ".join(crash.troubles()) or "the same"


def _repeated(crashes: Iterable[Crash]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for crash in crashes:
        for effect in crash.repeated:
            found.setdefault(effect, []).append(crash.where)
    return found


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

    Then again for pairs of deaths: the host that recovers it dies at one of its own calls, and a third one goes on.

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
        everywhere = _everywhere(alive)
        crashes, pairs = [], []
        for first in everywhere:
            heir = Boundary()
            crashes.append(_crash(scene, plain, first, heir))
            if first.is_new:
                # Before its first call, the host that recovers it has changed nothing: that is a single death.
                pairs += [(first, second) for second in _everywhere(heir)[1:] if second.is_new]
        drawn = random.Random(0).sample(pairs, min(PAIRS, len(pairs)))  # noqa: S311 - no secret
        seconds = [_crash(scene, plain, first, second.of_host(), second) for first, second in drawn]
    return CrashReport(job.name, dict(plain.effects), crashes, seconds, len(pairs))


@dataclass(frozen=True, slots=True)
class _Death:
    """A death at a storage call."""

    call: int
    name: str
    applied: bool
    is_new: bool
    """Whether anything has changed since the death before it: storage, or what is no call's effect."""

    def of_host(self) -> Boundary:
        """The calls of a host that dies it."""
        calls = Boundary()
        calls.at(self.call, Fault.DEATH_AFTER if self.applied else Fault.DEATH_BEFORE)
        return calls


def _everywhere(host: Boundary) -> list[_Death]:
    deaths = []
    for call, name in enumerate(host.calls, 1):
        is_read = name.partition(" ")[0].rpartition(".")[2] in READS
        deaths.append(_Death(call, name, applied=False, is_new=call == 1 or call - 1 in host.noted))
        deaths.append(_Death(call, name, applied=True, is_new=not is_read))
    return deaths


def _crash(scene: Scene, plain: Seen, first: _Death, heir: Boundary, second: _Death | None = None) -> Crash:
    seen = scene.play(first.of_host(), heir)
    both = plain.contents.keys() & seen.contents.keys()
    return Crash(
        first.call,
        first.name,
        applied=first.applied,
        outcome=seen.outcome,
        repeated={effect: n for effect, n in seen.effects.items() if n > plain.effects[effect]},
        missing=[effect for effect, n in plain.effects.items() if n > seen.effects[effect]],
        changed=sorted(effect for effect in both if plain.contents[effect] != seen.contents[effect]),
        second="" if second is None else _death(second.call, second.name, applied=second.applied),
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
