"""What a job is handed: its fire time, its rights, and the means to go on where an earlier attempt stopped."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from runonce.errors import NotKeptError
from runonce.execution.checkpoint import Batches, Checkpoint
from runonce.execution.patience import patiently
from runonce.execution.steps import step
from runonce.runs.follow_ups import Outbox
from runonce.runs.rows import entry_key, key_range
from runonce.stores.columns import LARGEST_TRANSACTION, LONGEST_KEY, column_problem, payload, row_problem
from runonce.stores.protocols import MAX_TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from runonce.execution.blobs import Blobs
    from runonce.execution.lease import Lease
    from runonce.execution.log import RunLogger
    from runonce.execution.registry import Registry
    from runonce.execution.stop import StopSignal
    from runonce.messages.definition import Handler
    from runonce.runs.claim import Claim
    from runonce.runs.follow_ups import FollowUps
    from runonce.stores.protocols import Row, Value

T = TypeVar("T")
P = ParamSpec("P")
PAGE = 1000
"""Rows in one answer of a table (Azure Tables' limit)."""
LARGEST_ENTRIES = LARGEST_TRANSACTION - 1_000_000
"""Bytes of ledger entries in one commit: a transaction's, less the job's row and the run's, escaped."""
MAX_ENTRIES = MAX_TRANSACTION - 2
"""Ledger entries in one commit: a transaction, less the job's row and the run's."""


class Run:
    """One execution of a job for one fire time; the only argument a job takes."""

    def __init__(
        self,
        *,
        registry: Registry,
        claim: Claim,
        lease: Lease,
        stop: StopSignal,
        blobs: Blobs,
        log: RunLogger,
        deadline: float,
        follow_ups: FollowUps | None = None,
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
        self.ledger = Ledger(registry, self.job, lease.check)
        """Entries that are committed with the next checkpoint, each key once forever."""
        self.outbox = Outbox(claim.run, follow_ups)
        """Messages that the next commit takes along."""

        def save(
            checkpoint: str,
            progress: Mapping[str, int],
            steps: Mapping[str, Any],
            entries: Mapping[str, Mapping[str, Value]],
        ) -> None:
            kept, count, fan_out = self.outbox.noted()
            claim.save(
                checkpoint, progress, entries, steps=steps, outbox=kept, follow_ups=count, fan_out=fan_out
            )
            self.outbox.send(kept)

        row = claim.run
        self.checkpoint = Checkpoint(
            f"Job {self.job}", save, row.checkpoint, row.progress, row.steps, self.ledger
        )
        """What an earlier attempt saved, and saving."""
        self._registry = registry
        self._lease = lease
        self._stop = stop
        self._deadline = deadline

    @property
    def stopping(self) -> bool:
        """True once the run should end: lease lost, host stopping, or over its time limit.

        A run that has seen it and returns counts as stopped, and goes on elsewhere, unless it calls `done`.
        """
        stopping = self._stop.cause is not None or not self._lease.held
        self._stop.told |= stopping
        return stopping

    def check(self) -> None:
        """Return while the run may go on; call it wherever stopping is safe.

        Raises:
            LeaseLost, HostStopping, TimeLimitExceeded: It may not. Let it pass; the toolkit records why.
        """
        if not self.stopping:
            return
        if (cause := self._stop.cause) is not None:
            raise type(cause)(str(cause))
        self._lease.check()

    def done(self) -> None:
        """Say that the work is complete, although the run may have been told to stop; it then has succeeded.

        Not needed where `batches` ran out, or where the run never asked. Over its max_runtime it fails all the same.
        """
        self._stop.done = True

    def remaining(self) -> float:
        """Seconds left of the job's max_runtime, infinite without one; 0.0 once the run is told to stop."""
        return 0.0 if self.stopping else max(0.0, self._deadline - self._registry.clock.elapsed())

    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function once in all attempts: what it returned is kept, and a later attempt is given that.

        One storage call, which takes along the ledger entries and messages of before and of the function, as a
        checkpoint does. Of an async function the result is to be awaited. A call that raises is not kept.

        A host that dies after the function's effect and before that call makes a later attempt call it again: give
        what it calls `step_key`.

        Args:
            name: 1 to 200 characters, once in an attempt; in a loop, with an id in it.
            function: What to call; its result must be JSON, and comes back as JSON gives it (a tuple as a list).
            args: Its arguments.
            kwargs: Its arguments by name.

        Raises:
            InputError: The name was given before in this attempt, the result is not JSON, or the results of all steps
                take more than 30,000 characters; the latter two after the effect.
            LeaseLost, HostStopping, TimeLimitExceeded: As `check`, before the function is called.
            LeaseLost, Fenced: The run no longer owns its job; the result was not kept.
        """
        return step(f"Job {self.job}", self.check, self.checkpoint, name, partial(function, *args, **kwargs))

    def step_key(self, name: str) -> str:
        """A step's own idempotency key, the same in every attempt: job, fire time and the step's name."""
        return f"{self.idempotency_key}/{name}"

    def enqueue(self, handler: Handler, body: Any, *, key: str | None = None) -> None:
        """Send a message to a handler with the checkpoint or batch that comes next, or with the run's success.

        Its id comes from the job, the fire time and the message's ordinal, so that it is the same message when a
        later attempt sends it again.

        Args:
            handler: Whom it is for; what `@handler` made of the function.
            body: bytes and text as they are (UTF-8); anything else as JSON.
            key: What it is known by, as in `Message.enqueue`.

        Raises:
            InputError: The body is not JSON, or the messages of one commit are too large for the run's row.
        """
        self.outbox.add(handler, body, key)

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
        return Batches(
            f"Job {self.job}", self.check, self._stop, self.checkpoint, items, size=size, name=name
        )


class Ledger:
    """A job's own table of effects: one entry per key, forever, written with a checkpoint or not at all.

    Entries that no checkpoint has taken along are written with the run's success.
    """

    def __init__(self, registry: Registry, job: str, check: Callable[[], None]) -> None:
        self._registry = registry
        self._job = job
        self._check = check
        self._lock = threading.Lock()
        self.staged: dict[str, dict[str, Value]] = {}
        """Entries by key that no commit has taken yet."""
        self._sizes: dict[str, int] = {}
        self._under_way: frozenset[str] = frozenset()

    def record(self, key: str, **values: Value) -> None:
        """Record an effect; written in one transaction with the checkpoint or batch that comes next.

        Args:
            key: What must take effect once, such as an invoice's number; at most 200 characters.
            values: Columns: text, numbers, booleans. "key" is taken.

        Raises:
            InputError: The key or a value cannot be kept, or more than 98 entries wait for a commit.
        """
        if not isinstance(key, str) or not 0 < len(key) <= 200:  # noqa: PLR2004 - the docstring's figure
            raise NotKeptError(
                f"Job {self._job}: ledger key {key!r:.80} must be a text of 1 to 200 characters."
            )
        if (length := len(entry_key(self._job, key))) > LONGEST_KEY:
            raise NotKeptError(
                f"Job {self._job}: ledger key {key!r:.80} takes {length} characters in a table, where every letter "
                f"beyond ASCII takes six or more, over {LONGEST_KEY}; use a shorter one."
            )
        for name, value in values.items():
            if (problem := column_problem(name, value)) is not None:
                raise NotKeptError(
                    f"Job {self._job}: ledger entry {key!r} has {name}={value!r:.80}: {problem}."
                )
        entry: dict[str, Value] = {"key": key, **values}
        if (problem := row_problem(entry)) is not None:
            raise NotKeptError(f"Job {self._job}: ledger entry {key!r}: {problem}.")
        with self._lock:
            self._sizes = {k: self._sizes.get(k) or payload(staged) for k, staged in self.staged.items()}
            self._sizes[key] = payload(entry)
            if sum(self._sizes.values()) > LARGEST_ENTRIES:
                raise NotKeptError(
                    f"Job {self._job}: ledger entry {key!r} is one too many for a commit, which takes "
                    f"{LARGEST_ENTRIES:,} bytes; use smaller batches, or keep the data in a blob."
                )
            if key in self.staged or key in self._under_way:
                raise NotKeptError(f"Job {self._job}: ledger key {key!r} is recorded twice in one batch.")
            if len(self.staged) >= MAX_ENTRIES:
                raise NotKeptError(
                    f"Job {self._job}: more than {MAX_ENTRIES} ledger entries in one batch; use smaller batches."
                )
            self.staged[key] = entry

    def entries(self) -> Iterator[dict[str, Value]]:
        """Every entry ever committed for the job, by key, as {"key": …, column: value, …}.

        Raises:
            StoreUnavailableError: The table did not answer for a minute.
            LeaseLost: It did not answer, and the run no longer owns its job.
        """
        first, last = key_range("entry", self._job)
        after = ""
        while True:
            read = partial(self._page, after or first, last)
            page = patiently(self._registry.clock, read, check=self._check)
            yield from (dict(row.values) for row in page if row.key != after)
            if len(page) < PAGE:
                return
            after = page[-1].key

    def _page(self, first: str, last: str) -> Sequence[Row]:
        return list(self._registry.table.scan(self._registry.namespace, first, last, limit=PAGE))

    def keys(self) -> set[str]:
        """The keys of all committed entries; one storage call for each 1,000."""
        return {str(entry["key"]) for entry in self.entries()}

    @property
    def is_empty(self) -> bool:
        """Whether no entry waits for a commit."""
        return not self.staged

    @contextmanager
    def taken(self) -> Iterator[Mapping[str, Mapping[str, Value]]]:
        """Take out as many entries as one commit writes; they are put back when it fails."""
        with self._lock:
            entries: dict[str, dict[str, Value]] = {}
            size = 0
            for key, entry in islice(self.staged.items(), MAX_ENTRIES):
                size += payload(entry)
                if entries and size > LARGEST_ENTRIES:
                    break
                entries[key] = entry
            self.staged = {key: entry for key, entry in self.staged.items() if key not in entries}
            self._under_way = frozenset(entries)
        try:
            yield entries
        except BaseException:
            with self._lock:
                self.staged = {**entries, **self.staged}
            raise
        finally:
            self._under_way = frozenset()
