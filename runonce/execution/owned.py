"""The one owner of rows: rows held under their ETags, and conditional writes whose outcome is known in the end.

A refusal is told from a lost reply by reading back: each write carries an id, which stands on the last of the
rows. What a claim may write, and when its rows are somebody else's, its subclass says.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runonce.errors import (
    AlreadyRecordedError,
    ConflictError,
    RunInterrupted,
    StoreError,
    StoreUnavailableError,
)
from runonce.execution.patience import Patience
from runonce.stores.columns import encode
from runonce.stores.protocols import Insert, Replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runonce.execution.registry import Registry
    from runonce.stores.protocols import Row, Write

log = logging.getLogger("runonce.execution.owned")

R = TypeVar("R", bound=tuple[Any, ...])
"""The rows, as a tuple of `Columns`; the last of them has a `holder`, which is nobody else's, and a `write_id`."""


class Owned(ABC, Generic[R]):
    """Rows of one partition that are ours until somebody else takes them over."""

    def __init__(
        self, registry: Registry, partition: str, keys: tuple[str, ...], rows: R, etags: tuple[str, ...]
    ) -> None:
        self._registry = registry
        self._partition = partition
        self._keys = keys
        self._rows = rows
        self._etags = etags
        self._lock = threading.Lock()
        self._writes = count(1)

    @abstractmethod
    def _check_right(self) -> None:
        """Raise once nothing may be written any more; asked before every try."""

    @abstractmethod
    def _ours(self, read: tuple[Row | None, ...]) -> R:
        """The rows that were read; raises `Fenced` where they are somebody else's by now, or gone."""

    @abstractmethod
    def _recorded(self, key: str) -> str:
        """What to say when an inserted row, by the key it was given under, is there already."""

    def _is_written(self, write_id: str) -> bool:
        """Whether nothing is left to write, by the rows as they were just read."""
        return bool(self._rows[-1].write_id == write_id)

    def _commit(self, change: Callable[[R], R], inserts: Mapping[str, Insert]) -> None:
        """Change the rows and insert others in one transaction, tried until it is known to be done or refused.

        Args:
            change: The rows as they shall be, made of the rows as they were last read. Called again after a refusal.
            inserts: Rows that must not exist yet, by the names to speak of them.

        Raises:
            Fenced: The rows are somebody else's by now; nothing was written.
            AlreadyRecordedError: One of the inserted rows is there already; nothing was written.
            StoreUnavailableError: The table did not answer for a minute.
        """
        write_id, patience = self._next_id(), Patience(self._registry.clock)
        unsure = False  # whether the rows have to be read before the next try
        conflict: ConflictError | None = None
        while True:
            self._check_right()
            try:
                if unsure:
                    self._read_back()
                    if self._is_written(write_id):
                        return
                    self._check_right()  # the answer may have taken long
                if conflict is not None and conflict.exists:
                    raise AlreadyRecordedError(
                        self._recorded(list(inserts)[conflict.index - len(self._keys)])
                    ) from None  # the row's name says it all
                unsure, conflict = False, None
                self._write(self._with_id(change(self._rows), write_id), list(inserts.values()))
            except ConflictError as error:
                unsure, conflict = True, error
            except StoreUnavailableError as error:
                log.warning("a write got no answer, reading back: %s", error)
                unsure = True
                patience.spend(error)
            else:
                return

    @staticmethod
    def commit_together(changes: Mapping[Owned[R], Callable[[R], R]]) -> None:
        """Try to change the rows of several, all of one partition, in one transaction.

        Left as they are: whoever may not write, whose rows changed meanwhile, and all where the table does not answer.
        To commit by itself finds out what is true of each.
        """
        with ExitStack() as locks:
            rows: dict[Owned[R], R] = {}
            for one, change in changes.items():
                locks.enter_context(one._lock)  # noqa: SLF001 - its own class, here and below
                with suppress(RunInterrupted):
                    one._check_right()  # noqa: SLF001
                    rows[one] = one._with_id(change(one._rows), one._next_id())  # noqa: SLF001
            while rows:
                writes = [(one, write) for one, new in rows.items() for write in one._replaced(new)]  # noqa: SLF001
                registry, partition = writes[0][0]._registry, writes[0][0]._partition  # noqa: SLF001
                try:
                    etags = iter(registry.table.commit(partition, [write for _, write in writes]))
                except ConflictError as refused:
                    del rows[writes[refused.index][0]]
                except StoreError as error:
                    log.warning(
                        "a write of %d rows got no answer, each is tried by itself: %s", len(rows), error
                    )
                    return
                else:
                    for one, new in rows.items():
                        one._rows, one._etags = new, tuple(islice(etags, len(new)))  # noqa: SLF001
                    return

    def _next_id(self) -> str:
        return f"{self._rows[-1].holder}:{next(self._writes)}"

    def _replaced(self, rows: R) -> list[Write]:
        return [
            Replace(key, encode(row), etag)
            for key, row, etag in zip(self._keys, rows, self._etags, strict=True)
        ]

    def _write(self, rows: R, inserts: list[Insert]) -> None:
        """One try: the rows are ours as written, or it raises."""
        etags = self._registry.table.commit(self._partition, [*self._replaced(rows), *inserts])
        self._rows, self._etags = rows, tuple(etags[: len(self._keys)])

    def _read_back(self) -> None:
        """Take over the rows as they are now; raises `Fenced` where they are somebody else's."""
        read = tuple(self._registry.table.get(self._partition, key) for key in self._keys)
        self._rows = self._ours(read)
        self._etags = tuple(row.etag for row in read if row is not None)

    @staticmethod
    def _with_id(rows: R, write_id: str) -> R:
        return (*rows[:-1], replace(rows[-1], write_id=write_id))  # type: ignore[return-value]
