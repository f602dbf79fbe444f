"""What a soak's replicas do, and the accounting of it: every fire time and message done once, or named by a record.

An effect is noted twice: outside, in the file of effects, as it is made; and in the toolkit's own tables, fenced, under
a key that has the attempt in it, so that a second one is a second row and not the same one again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING

from experiments.lab import Finding, plural
from runonce.messages.definition import handler
from runonce.messages.effects import read_effects
from runonce.messages.rows import SHARDS, State, decode_message, partition
from runonce.messages.status import CLAIMS
from runonce.runs.definition import scheduled
from runonce.runs.rows import Outcome, decode_run, key_range

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import datetime

    from experiments.effects import Effect, Effects
    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run
    from runonce.stores.protocols import Stores

JOBS, ITEMS = 20, 4
ITEM_SECONDS = 0.8
BEGIN, END, CALL = "begin", "end", "call"
ORDER = "order"
SHOWN = 5


def second_of(number: int) -> int:
    """Of each minute, at which a job fires: every other job at its beginning, the rest spread over it."""
    return 3 * number if number % 2 else 0


def name_of(number: int) -> str:
    """A job's name."""
    return f"job-{number:02}"


def work_of(job: str, fire_time: datetime) -> str:
    """What a fire time of a job is called here."""
    return f"{job}/{fire_time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def jobs(effects: Effects, sleep: Callable[[float], None]) -> dict[str, ScheduledJob]:
    """Jobs that fire once a minute."""

    def body(run: Run) -> None:
        work = work_of(run.job, run.fire_time)
        effects.append(f"{work} {BEGIN}")
        for (item,) in run.batches(range(ITEMS), size=1):
            effects.append(f"{work} {item}")
            sleep(ITEM_SECONDS)
            run.ledger.record(f"{work} {item} {run.attempt}", work=work, part=str(item))
        run.ledger.record(f"{work} {END} {run.attempt}", work=work, part=END)
        effects.append(f"{work} {END}")

    return {
        name_of(n): scheduled(
            f"{second_of(n)} * * * * *", name=name_of(n), misfire="all", retries=10, retry_delay=1
        )(body)
        for n in range(JOBS)
    }


def orders(namespace: str, effects: Effects) -> Handler:
    """A handler with a row for each message."""

    @handler(queue=f"{namespace}-orders", key="order", name=ORDER, retries=10, retry_delay=1)
    def order(message: Message) -> None:
        work = f"{ORDER}/{message.key}"
        effects.append(f"{work} {CALL}")
        message.commit({f"{CALL}-{message.attempt}": {"work": work, "part": CALL}})

    return order


@dataclass(frozen=True, slots=True)
class Record:
    """What the toolkit says of a fire time or message."""

    state: str
    is_done: bool
    reason: str
    attempt: int


@dataclass
class Account:
    """Where each fire time, or each message, is."""

    done: set[str] = field(default_factory=set)
    named: dict[str, str] = field(default_factory=dict)
    """Not done, and a record says why: what it says."""
    missing: dict[str, str] = field(default_factory=dict)
    """Not done or not whole, and no record says why: what there is instead."""
    twice: dict[str, str] = field(default_factory=dict)
    """With more than one fenced effect, or with more calls than its attempts can have made: which."""
    repeated: int = 0
    """Calls outside that were made again, because the attempt before had ended between its call and its commit."""

    def finding(self, what: str, expected: str) -> Finding:
        """A line of the table."""
        whole = sum(map(len, (self.done, self.named, self.missing, self.twice)))
        return Finding(
            what,
            expected,
            f"{whole:,} {what}: {len(self.done):,} done once, {len(self.named)} named by a record, "
            f"{len(self.missing)} missing, {len(self.twice)} twice; {plural(self.repeated, 'call')} outside repeated",
            ok=whole > 0 and not self.missing and not self.twice,
        )

    def told(self) -> list[str]:
        """Some of what is not done once, in words."""
        kinds = {"missing": self.missing, "twice": self.twice, "named by a record": self.named}
        return [
            f"{work} is {kind}: {why}" for kind, of in kinds.items() for work, why in list(of.items())[:SHOWN]
        ]


def account(
    expected: Collection[str],
    parts: Collection[str],
    rows: Mapping[tuple[str, str], int],
    records: Mapping[str, Record],
    calls: Mapping[tuple[str, str], int],
) -> Account:
    """Add up.

    Args:
        expected: The fire times or messages there were.
        parts: The effects each of them has.
        rows: Fenced effects, by fire time or message and part.
        records: What the toolkit says.
        calls: Effects outside, as `rows`.
    """
    seen = Account()
    for work in expected:
        record, found = records.get(work), {part: rows.get((work, part), 0) for part in parts}
        again = sum(max(0, calls.get((work, part), 0) - 1) for part in parts)
        seen.repeated += again
        absent = [part for part, n in found.items() if not n or not calls.get((work, part))]
        if doubled := [f"{n} rows of {part}" for part, n in found.items() if n > 1]:
            seen.twice[work] = ", ".join(doubled)
        elif record is None:
            seen.missing[work] = "there is no record"
        elif again >= record.attempt:
            seen.twice[work] = f"{plural(again, 'call')} too many in {plural(record.attempt, 'attempt')}"
        elif record.is_done and not absent:
            seen.done.add(work)
        elif record.is_done or not record.reason:
            seen.missing[work] = f"{record.state}, without {', '.join(absent) or 'nothing'}"
        else:
            seen.named[work] = f"{record.state}: {record.reason}"
    return seen


def account_jobs(
    stores: Stores, namespace: str, fire_times: Collection[str], noted: Collection[Effect]
) -> Account:
    """Of fire times, by what storage and the file of effects have."""
    entries = stores.runs.scan(namespace, *key_range("entry"))
    rows = Counter((str(row.values["work"]), str(row.values["part"])) for row in entries)
    records = {}
    for run in map(decode_run, stores.runs.scan(namespace, *key_range("run"))):
        reason = run.reason if run.outcome.is_final else ""
        records[work_of(run.job, run.fire_time)] = Record(
            run.outcome, run.outcome is Outcome.SUCCEEDED, reason, run.attempt
        )
    return account(fire_times, [*map(str, range(ITEMS)), END], rows, records, _calls(noted))


def account_messages(
    stores: Stores, namespace: str, sent: Collection[str], noted: Collection[Effect]
) -> Account:
    """Of messages, by what storage and the file of effects have."""
    effects = read_effects(stores.claims, namespace, ORDER)
    rows = Counter((str(row["work"]), str(row["part"])) for row in effects)
    records = {}
    for shard in range(SHARDS):
        for claim in map(decode_message, stores.claims.scan(partition(namespace, ORDER, shard), *CLAIMS)):
            reason = claim.reason if claim.state in (State.FAILED, State.UNKNOWN) else ""
            records[f"{ORDER}/{claim.key}"] = Record(
                claim.state, claim.state is State.DONE, reason, claim.attempt
            )
    return account(sent, [CALL], rows, records, _calls(noted))


def _calls(noted: Collection[Effect]) -> Counter[tuple[str, str]]:
    work_and_part = (effect.key.partition(" ") for effect in noted)
    return Counter((work, part) for work, _, part in work_and_part)
