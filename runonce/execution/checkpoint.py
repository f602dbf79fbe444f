"""How far a run has come: a checkpoint's values, and batches that save it as they go."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from runonce.errors import NotKeptError
from runonce.stores.columns import json_text, units

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from runonce.execution.stop import StopSignal
    from runonce.stores.protocols import Value

    Save = Callable[[str, Mapping[str, int], Mapping[str, Any], Mapping[str, Mapping[str, Value]]], None]
    """Checkpoint, progress, results of steps, ledger entries."""

T = TypeVar("T")


LONGEST_CHECKPOINT = 30_000
"""Characters of JSON, in UTF-16; a table's text column ends at 32 Ki UTF-16 units (Azure Tables' limit of 64 KiB)."""
LARGEST_STEPS = LONGEST_CHECKPOINT
"""The same, of the names and results of all steps together."""


class Batches(Generic[T]):
    """What `Run.batches` returns: iterable and asynchronously iterable, once."""

    def __init__(
        self,
        who: str,
        check: Callable[[], None],
        stop: StopSignal,
        checkpoint: Checkpoint,
        items: Iterable[T],
        *,
        size: int,
        name: str,
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise NotKeptError(f"{who}: batches(size={size!r:.80}) must be 1 or more, and whole.")
        if not isinstance(name, str):
            raise NotKeptError(f"{who}: batches(name={name!r:.80}) must be text, as which it is kept.")
        if name in checkpoint.loops:
            raise NotKeptError(f'{who}: a second batches loop needs a name of its own: name="…".')
        if len(json.dumps({**checkpoint.progress, name: sys.maxsize})) > LONGEST_CHECKPOINT:
            raise NotKeptError(
                f"{who}: batches(name={name!r:.80}) is one loop too many: what is kept of them takes at most "
                f"{LONGEST_CHECKPOINT} characters; use one loop over all items, or shorter names."
            )
        checkpoint.loops.add(name)
        self._check = check
        self._stop = stop
        self._checkpoint = checkpoint
        self._items = items
        self._size = size
        self._name = name
        self._cut_short = False
        """Whether the items themselves looked at the stop, and may have ended because of it."""

    def __iter__(self) -> Iterator[list[T]]:
        for batch, done in self._remaining():
            self._check()
            yield batch
            self._checkpoint.commit(self._name, done)
        self._stop.told = self._cut_short  # whatever the loop was told before, its work is done

    async def __aiter__(self) -> AsyncIterator[list[T]]:
        for batch, done in self._remaining():
            self._check()
            yield batch
            await asyncio.to_thread(self._checkpoint.commit, self._name, done)
        self._stop.told = self._cut_short

    def _remaining(self) -> Iterator[tuple[list[T], int]]:
        done = self._checkpoint.progress.get(self._name, 0)
        rest = itertools.islice(self._items, done, None)
        while batch := self._next(rest):
            done += len(batch)
            yield batch, done

    def _next(self, rest: Iterator[T]) -> list[T]:
        told, self._stop.told = self._stop.told, False
        try:
            return list(itertools.islice(rest, self._size))
        finally:
            self._cut_short |= self._stop.told
            self._stop.told |= told


class Staged(Protocol):
    """What is written together with a checkpoint: a ledger's entries since the last one."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be written."""
        ...

    def taken(self) -> AbstractContextManager[Mapping[str, Mapping[str, Value]]]:
        """Take out what one commit writes; it is put back when the block raises."""
        ...


class Checkpoint:
    """What a long run has done so far; a later attempt starts by asking for it."""

    def __init__(
        self,
        who: str,
        save: Save,
        text: str,
        progress: Mapping[str, int],
        steps: Mapping[str, Any],
        ledger: Staged | None = None,
    ) -> None:
        self._who = who
        self._write = save
        self._ledger = ledger
        self._text = text
        self.progress: dict[str, int] = dict(progress)
        """Items done, by the name of the `batches` loop."""
        self.loops: set[str] = set()
        """Names of the `batches` loops this attempt has begun."""
        self.steps: dict[str, Any] = dict(steps)
        """Results of the steps that are done, by their names."""
        self.begun_steps: dict[str, object] = {}
        """Steps that this attempt has come to, and by which call."""
        self._lock = threading.Lock()  # one save at a time, each made of what the one before it left

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
            text = json_text(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise NotKeptError(
                f"{self._who}: a checkpoint is a JSON value, and {type(value).__name__} is not: {error}. "
                f"Save text, numbers, booleans, None, and lists and dicts of those."
            ) from error
        if (size := units(text)) > LONGEST_CHECKPOINT:
            raise NotKeptError(
                f"{self._who}: a checkpoint of {size} characters of JSON is over "
                f"{LONGEST_CHECKPOINT}; keep a position in it, and the data in a blob."
            )
        with self._lock:
            self._save(text, self.progress, self.steps)

    def flush(self) -> None:
        """Write the ledger entries recorded since the last time, and leave the checkpoint as it is; at most one call.

        For a run that stops in mid-batch and knows which of its effects have happened. Raises as `save` does.
        """
        with self._lock:
            if self._ledger is not None and not self._ledger.is_empty:
                self._save(self._text, self.progress, self.steps)

    def commit(self, loop: str, done: int) -> None:
        """Keep how far a `batches` loop has come."""
        with self._lock:
            self._save(self._text, {**self.progress, loop: done}, self.steps)

    def room_for(self, step: str) -> bool:
        """Whether one more step can be kept, if its result is short."""
        return units(json_text({**self.steps, step: None})) <= LARGEST_STEPS

    def keep(self, step: str, result: Any) -> None:
        """Keep a step's result, and what is recorded with it; raises as `save` does."""
        with self._lock:
            steps = {**self.steps, step: result}
            if (size := units(json_text(steps))) > LARGEST_STEPS:
                raise NotKeptError(
                    f"{self._who}: step {step!r} has taken effect, and its result can not be kept: with it, the steps "
                    f"take {size} characters of JSON together, over {LARGEST_STEPS}. Return what is needed later, such "
                    f"as an id, and keep the data in a blob."
                )
            self._save(self._text, self.progress, steps)

    def end(self, write: Callable[[Mapping[str, Mapping[str, Value]]], None]) -> None:
        """Let the run's end write the last entries, after any save that is under way.

        Args:
            write: Is given what goes with the end. Entries that are too many for one commit, after saves that failed,
                are written before.

        Raises as `save` and `write` do.
        """
        with self._lock:
            while True:
                with self._taken() as entries:
                    if self._ledger is None or self._ledger.is_empty:
                        write(entries)
                        return
                    self._write(self._text, self.progress, self.steps, entries)

    def _save(self, text: str, progress: dict[str, int], steps: dict[str, Any]) -> None:
        with self._taken() as entries:
            self._write(text, progress, steps, entries)
        self._text, self.progress, self.steps = text, progress, steps

    def _taken(self) -> AbstractContextManager[Mapping[str, Mapping[str, Value]]]:
        return nullcontext({}) if self._ledger is None else self._ledger.taken()
