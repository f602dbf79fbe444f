"""Where messages are kept: SQLite in a file, which a killed broker comes back to, or in memory.

Writes are not flushed to the disk one by one: a killed process loses nothing, a machine without power might.
Locks are not kept: after a restart every locked message is available again, its delivery count unchanged.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from servicebus.message import Message, State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servicebus.values import Raw

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS reserved (entity TEXT PRIMARY KEY, sequence_number INTEGER);
CREATE TABLE IF NOT EXISTS seen (entity TEXT, message_id BLOB, until REAL, PRIMARY KEY (entity, message_id));
CREATE TABLE IF NOT EXISTS message (
    entity TEXT, sequence_number INTEGER, enqueued REAL, delivery_count INTEGER, state INTEGER, due REAL,
    expires REAL, encoded BLOB, PRIMARY KEY (entity, sequence_number)
) WITHOUT ROWID;
"""


class Store:
    """The rows behind every queue and topic."""

    def __init__(self, path: Path | None) -> None:
        self._db = sqlite3.connect(path or ":memory:", isolation_level=None)
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep all of the writes within, or none; inside another transaction, part of that one."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def add(self, entity: str, message: Message) -> None:
        """Keep a message whole."""
        self._db.execute(
            "INSERT OR REPLACE INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entity,
                message.sequence_number,
                message.enqueued,
                message.delivery_count,
                int(message.state),
                message.due,
                message.expires,
                message.encode(),
            ),
        )

    def update(self, entity: str, message: Message) -> None:
        """Keep what can change while a message stays where it is."""
        self._db.execute(
            "UPDATE message SET enqueued = ?, delivery_count = ?, state = ?"
            " WHERE entity = ? AND sequence_number = ?",
            (message.enqueued, message.delivery_count, int(message.state), entity, message.sequence_number),
        )

    def remove(self, entity: str, message: Message) -> None:
        """Forget a message."""
        self._db.execute(
            "DELETE FROM message WHERE entity = ? AND sequence_number = ?", (entity, message.sequence_number)
        )

    def messages(self, entity: str) -> Iterator[Message]:
        """What an earlier broker left, in order."""
        rows = self._db.execute(
            "SELECT sequence_number, enqueued, delivery_count, state, due, expires, encoded"
            " FROM message WHERE entity = ? ORDER BY sequence_number",
            (entity,),
        )
        for number, enqueued, count, state, due, expires, encoded in rows:
            message = Message.parse(encoded)
            message.sequence_number, message.enqueued, message.delivery_count = number, enqueued, count
            message.state, message.due, message.expires = State(state), due, expires
            yield message

    def reserve(self, entity: str, sequence_number: int) -> None:
        """No number below this one is used again, even after a kill."""
        self._db.execute("INSERT OR REPLACE INTO reserved VALUES (?, ?)", (entity, sequence_number))

    def reserved(self, entity: str) -> int:
        """The first number an earlier broker cannot have used."""
        row = self._db.execute("SELECT sequence_number FROM reserved WHERE entity = ?", (entity,)).fetchone()
        return int(row[0]) if row else 1

    def remember(self, entity: str, message_id: Raw, until: float) -> None:
        """Keep an id for duplicate detection."""
        self._db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", (entity, message_id, until))

    def forget(self, entity: str, message_id: Raw) -> None:
        """Drop an id whose window is over."""
        self._db.execute("DELETE FROM seen WHERE entity = ? AND message_id = ?", (entity, message_id))

    def seen(self, entity: str) -> list[tuple[Raw, float]]:
        """The ids an earlier broker remembered, the oldest first."""
        query = "SELECT message_id, until FROM seen WHERE entity = ? ORDER BY until"
        return self._db.execute(query, (entity,)).fetchall()
