"""What a job is handed: its fire time, its rights, and the means to go on where an earlier attempt stopped."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runonce.errors import InputError
from runonce.records import LONGEST_KEY, column_problem, entry_key, key_range
from runonce.stores.protocols import MAX_TRANSACTION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from runonce.blobs import Blobs
    from runonce.claim import Claim, Ownership
    from runonce.lease import Lease
    from runonce.stop import StopSignal
    from runonce.stores.protocols import Value
    from runonce.telemetry import RunLogger

    Save = Callable[[str, Mapping[str, int], Mapping[str, Mapping[str, Value]]], None]

T = TypeVar("T")


LONGEST_CHECKPOINT = 30_000
"""Characters of JSON, in UTF-16; a table's text column ends at 32 Ki UTF-16 units (Azure Tables' limit of 64 KiB)."""
MAX_ENTRIES = MAX_TRANSACTION - 2
"""Ledger entries in one commit: a transaction, less the job's row and the run's."""


class Run:
    """One execution of a job for one fire time; the only argument a job takes."""

    def __init__(
        self,
        *,
        own: Ownership,
        claim: Claim,
        lease: Lease,
        stop: StopSignal,
        blobs: Blobs,
        log: RunLogger,
        deadline: float,
    ) -> None:
        self.job: str = claim.run.job
        """The job's name."""
        self.fire_time: datetime = claim.run.fire_time
        """The instant the schedule named, in UTC; the same for every attempt."""
        self.attempt: int = claim.run.attempt
        """1 for the first start, one more for each restart of whatever kind."""
        self.fencing_token: int = claim.run.token
        """Rises with every claim of the job. Give it to what you write to, and have older ones refused there."""
        self.idempotency_key: str = claim.run.idempotency_key
        """The same for every attempt. Give it to what you call, so that a repeated call has one effect."""
        self.log = log
        """A logger that names this run in every line."""
        self.blobs = blobs
        """The namespace's blobs; writes are refused once a newer run of the job has written."""
        self.ledger = Ledger(own, self.job)
        """Entries that are committed with the next checkpoint, each key once for ever."""
        self.checkpoint = Checkpoint(
            f"Job {self.job}", claim.save, claim.run.checkpoint, claim.run.progress, self.ledger
        )
        """What an earlier attempt saved, and saving."""
        self._own = own
        self._lease = lease
        self._stop = stop
        self._deadline = deadline

    @property
    def stopping(self) -> bool:
        """True once the run should end: lease lost, host stopping, or over its time limit."""
        return self._stop.cause is not None or not self._lease.held

    def check(self) -> None:
        """Return while the run may go on; call it wherever stopping is safe.

        Raises:
            LeaseLost, HostStopping, TimeLimitExceeded: It may not. Let it pass; the toolkit records why.
        """
        cause = self._stop.cause
        if cause is not None:
            raise type(cause)(str(cause))
        self._lease.check()

    def remaining(self) -> float:
        """Seconds left of the job's max_runtime, infinite without one; 0.0 once the run is told to stop."""
        return 0.0 if self.stopping else max(0.0, self._deadline - self._own.clock.elapsed())

    def batches(self, items: Iterable[T], *, size: int, name: str = "items") -> Batches[T]:
        """The items in batches, from the first batch an earlier attempt did not finish.

        A batch is committed, with the ledger entries recorded in it, when the loop comes back for the next
        one: one storage call. The items must come in the same order on every attempt. Works in `for` and in
        `async for`; stops with the exceptions of `check` between batches.

        Args:
            items: What to work through.
            size: Items in a batch, 1 or more; at most 98 ledger entries can be recorded in one.
            name: Tells several loops of one run apart.

        Raises:
            InputError: size is less than 1, or the run already has a loop of that name.
        """
        return Batches(f"Job {self.job}", self.check, self.checkpoint, items, size=size, name=name)


class Batches(Generic[T]):
    """What `Run.batches` returns: iterable and asynchronously iterable, once."""

    def __init__(
        self,
        who: str,
        check: Callable[[], None],
        checkpoint: Checkpoint,
        items: Iterable[T],
        *,
        size: int,
        name: str,
    ) -> None:
        if size < 1:
            raise InputError(f"{who}: batches(size={size}) must be 1 or more.")
        if name in checkpoint.loops:
            raise InputError(f'{who}: a second batches loop needs a name of its own: name="…".')
        checkpoint.loops.add(name)
        self._check = check
        self._checkpoint = checkpoint
        self._items = items
        self._size = size
        self._name = name

    def __iter__(self) -> Iterator[list[T]]:
        for batch, done in self._remaining():
            self._check()
            yield batch
            self._checkpoint.commit(self._name, done)

    async def __aiter__(self) -> AsyncIterator[list[T]]:
        for batch, done in self._remaining():
            self._check()
            yield batch
            await asyncio.to_thread(self._checkpoint.commit, self._name, done)

    def _remaining(self) -> Iterator[tuple[list[T], int]]:
        done = self._checkpoint.progress.get(self._name, 0)
        rest = itertools.islice(self._items, done, None)
        while batch := list(itertools.islice(rest, self._size)):
            done += len(batch)
            yield batch, done


class Checkpoint:
    """What a long run has done so far; a later attempt starts by asking for it."""

    def __init__(
        self, who: str, save: Save, text: str, progress: Mapping[str, int], ledger: Ledger | None = None
    ) -> None:
        self._who = who
        self._write = save
        self._ledger = ledger
        self._text = text
        self.progress: dict[str, int] = dict(progress)
        """Items done, by the name of the `batches` loop."""
        self.loops: set[str] = set()
        """Names of the `batches` loops this attempt has begun."""

    def load(self, default: Any = None) -> Any:
        """What `save` kept last, by this attempt or an earlier one; `default` when nothing was."""
        return json.loads(self._text) if self._text else default

    def save(self, value: Any) -> None:
        """Keep a JSON value, and the ledger entries recorded since the last time; one storage call.

        In an async job, `await asyncio.to_thread(run.checkpoint.save, value)`.

        Raises:
            InputError: The value is not JSON, or too large.
            LeaseLost, Fenced: The run no longer owns its job; nothing was written.
            AlreadyRecordedError: A ledger entry is there already; nothing was written.
        """
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{self._who}: a checkpoint is a JSON value, and {type(value).__name__} is not: {error}. "
                f"Save text, numbers, booleans, None, and lists and dicts of those."
            ) from error
        size = len(text.encode("utf-16-le", "surrogatepass")) // 2
        if size > LONGEST_CHECKPOINT:
            raise InputError(
                f"{self._who}: a checkpoint of {size} characters of JSON is over "
                f"{LONGEST_CHECKPOINT}; keep a position in it, and the data in a blob."
            )
        self._save(text, self.progress)

    def flush(self) -> None:
        """Write the ledger entries recorded since the last time, and leave the checkpoint as it is; at most one call.

        For a run that stops in mid-batch and knows which of its effects have happened. Raises as `save` does.
        """
        if self._ledger is not None and self._ledger.staged:
            self._save(self._text, self.progress)

    def commit(self, loop: str, done: int) -> None:
        """Keep how far a `batches` loop has come."""
        self._save(self._text, {**self.progress, loop: done})

    def _save(self, text: str, progress: dict[str, int]) -> None:
        self._write(text, progress, {} if self._ledger is None else self._ledger.staged)
        self._text, self.progress = text, progress
        if self._ledger is not None:
            self._ledger.written()


class Ledger:
    """A job's own table of effects: one entry per key, for ever, written with a checkpoint or not at all.

    Entries that no checkpoint has taken along are written with the run's success.
    """

    def __init__(self, own: Ownership, job: str) -> None:
        self._own = own
        self._job = job
        self.staged: dict[str, dict[str, Value]] = {}
        """Entries by key that the next commit writes."""

    def record(self, key: str, **values: Value) -> None:
        """Record an effect; written in one transaction with the checkpoint or batch that comes next.

        Args:
            key: What must take effect once, such as an invoice's number; at most 200 characters.
            values: Columns: text, numbers, booleans. "key" is taken.

        Raises:
            InputError: The key or a value cannot be kept, or more than 98 entries wait for a commit.
        """
        if not isinstance(key, str) or not 0 < len(key) <= 200:  # noqa: PLR2004 - the docstring's figure
            raise InputError(
                f"Job {self._job}: ledger key {key!r:.80} must be a text of 1 to 200 characters."
            )
        if (length := len(entry_key(self._job, key))) > LONGEST_KEY:
            raise InputError(
                f"Job {self._job}: ledger key {key!r:.80} takes {length} characters in a table, where every letter "
                f"beyond ASCII takes six or more, over {LONGEST_KEY}; use a shorter one."
            )
        for name, value in values.items():
            if (problem := column_problem(name, value)) is not None:
                raise InputError(
                    f"Job {self._job}: ledger entry {key!r} has {name}={value!r:.80}: {problem}."
                )
        if key in self.staged:
            raise InputError(f"Job {self._job}: ledger key {key!r} is recorded twice in one batch.")
        if len(self.staged) >= MAX_ENTRIES:
            raise InputError(
                f"Job {self._job}: more than {MAX_ENTRIES} ledger entries in one batch; use smaller batches."
            )
        self.staged[key] = {"key": key, **values}

    def entries(self) -> Iterator[dict[str, Value]]:
        """Every entry ever committed for the job, by key, as {"key": …, column: value, …}."""
        for row in self._own.table.scan(self._own.partition, *key_range("entry", self._job)):
            yield dict(row.values)

    def keys(self) -> set[str]:
        """The keys of all committed entries; one storage call for each 1,000."""
        return {str(entry["key"]) for entry in self.entries()}

    def written(self) -> None:
        """The staged entries are committed."""
        self.staged = {}
