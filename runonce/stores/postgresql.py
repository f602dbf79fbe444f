"""Leases in PostgreSQL: an advisory lock, which ends with its holder's connection, and a row that gives it a term.

The lock tells at once that a holder is dead: the server lets go of it when the connection ends. The row tells who has
it and until when, so that a holder that is paused, or cut off without the server's noticing, blocks nobody for longer
than its term: whoever wants the lock then ends the session that has it. After a restart or a failover of the server
no session is left to tell the dead from the living, so there a term that was begun before is waited out.

A lease's connection does nothing but hold its lock. All else is asked on others, so a slow answer costs no lock.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import contextmanager, suppress
from datetime import UTC
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from runonce.errors import SettingsError, StoreError, StoreUnavailableError
from runonce.settings import CALL_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from datetime import datetime

TABLE = """
CREATE TABLE IF NOT EXISTS runonce_leases (
    key bigint PRIMARY KEY, name text NOT NULL, holder text NOT NULL, pid int NOT NULL,
    server timestamptz NOT NULL, duration int NOT NULL, ends timestamptz NOT NULL
)
"""
_LOCKED = """EXISTS (
    SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid = r.pid
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.classid::bigint << 32 | l.objid::bigint) = r.key
)"""
_RUNNING = "r.holder <> '' AND r.ends > clock_timestamp()"
_OF_BEFORE = "r.server <> pg_postmaster_start_time()"
_LIVES = f"{_RUNNING} AND ({_OF_BEFORE} OR {_LOCKED})"
_NAMED = "r.key = %(key)s AND r.name = %(name)s"
_OURS = f"{_NAMED} AND r.holder = %(holder)s"
_INSIDE = "starts_with(r.name, %(folder)s) AND position('/' in substr(r.name, length(%(folder)s) + 1)) = 0"

# One statement: a process that is paused between the lock and the row would hold a lock that has no end.
TAKE = f"""
WITH tried AS MATERIALIZED (SELECT pg_try_advisory_lock(%(key)s) AS locked), taken AS (
    INSERT INTO runonce_leases AS r
    SELECT %(key)s, %(name)s, %(holder)s, pg_backend_pid(), pg_postmaster_start_time(), %(duration)s,
        clock_timestamp() + make_interval(secs => %(duration)s)
    FROM tried WHERE locked
    ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, pid = excluded.pid, server = excluded.server,
        duration = excluded.duration, ends = excluded.ends
    WHERE r.name = excluded.name AND NOT (r.holder <> excluded.holder AND {_RUNNING} AND {_OF_BEFORE})
    RETURNING date_trunc('second', clock_timestamp()) AS granted
)
SELECT (SELECT granted FROM taken), locked FROM tried
"""
UNLOCK = "SELECT pg_advisory_unlock(%(key)s)"
RENEW = f"""
UPDATE runonce_leases r SET ends = clock_timestamp() + make_interval(secs => duration)
WHERE {_OURS} AND {_LOCKED} RETURNING true
"""
RELEASE = f"""
WITH released AS (UPDATE runonce_leases r SET holder = '' WHERE {_OURS} RETURNING r.key)
SELECT pg_advisory_unlock(key) FROM released
"""
# The row is changed before the session is ended: from then on its holder cannot renew.
_END = """
WITH ended AS (UPDATE runonce_leases r SET holder = '' WHERE {which} RETURNING r.*)
SELECT true, CASE WHEN {locked} THEN pg_terminate_backend(r.pid, 1000) END FROM ended r
"""
END_OVERDUE = _END.format(
    which=f"{_NAMED} AND r.holder <> '' AND (r.holder = %(holder)s OR r.ends <= clock_timestamp())",
    locked=_LOCKED,
)
END_OURS = _END.format(which=_OURS, locked=_LOCKED)
END_WHOSEVER = _END.format(which=f"{_NAMED} AND {_LIVES}", locked=_LOCKED)
DISOWN = (
    f"UPDATE runonce_leases r SET holder = gen_random_uuid()::text WHERE {_OURS} AND {_LIVES} RETURNING true"
)
HELD = f"SELECT true FROM runonce_leases r WHERE {_NAMED} AND {_LIVES}"
HELD_IN = f"SELECT r.name FROM runonce_leases r WHERE {_INSIDE} AND {_LIVES}"
ORPHANED = f"""
UPDATE runonce_leases r SET holder = ''
WHERE {_INSIDE} AND {_RUNNING} AND NOT ({_OF_BEFORE} OR {_LOCKED}) RETURNING r.name
"""
OTHER_NAME = "SELECT r.name FROM runonce_leases r WHERE r.key = %(key)s AND r.name <> %(name)s"
# A lease's connection is silent for as long as it is held. The server gives a vanished machine longer than any lease.
SESSION = f"""
SELECT set_config('statement_timeout', '{CALL_TIMEOUT:g}s', false), set_config('tcp_keepalives_idle', '60', false),
    set_config('tcp_keepalives_interval', '5', false), set_config('tcp_keepalives_count', '3', false)
"""
ASIDE: dict[str, Any] = {
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "application_name": "runonce-leases",
}


class PostgreSQLLeases:
    """Leases in the database of a connection string; the table is in the first schema of its search path.

    Raises:
        SettingsError: The text is no connection string.
    """

    def __init__(self, address: str) -> None:
        try:
            conninfo_to_dict(address)
        except psycopg.Error:  # which quotes it, password and all
            raise SettingsError(
                "RUNONCE_LEASES is not a connection string of PostgreSQL: write it as "
                "postgresql://user:password@host:5432/database, with special characters percent-encoded."
            ) from None
        self._address = address
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[_Connection] = []
        self._held: dict[str, tuple[str, _Connection]] = {}

    def close(self) -> None:
        """Close what is open; leases that are held end with it."""
        with self._lock:
            for one in (*self._idle, *(connection for _, connection in self._held.values())):
                one.close()
            self._idle.clear()

    # -- the protocol of LeaseStore ---------------------------------------------------------------------------------

    def acquire(self, name: str, holder: str, duration: int) -> datetime | None:
        values = {"key": _key(name), "name": name, "holder": holder, "duration": duration}
        with self._connection(name) as connection:
            ((granted, locked),) = _all(connection, TAKE, values)
            # A grant of ours whose answer was lost is a session's that nobody has any more.
            if not locked and _first(connection, END_OVERDUE, values):
                ((granted, locked),) = _all(connection, TAKE, values)
            if granted is not None:
                self._keep(name, holder, connection)
                at: datetime = granted.astimezone(UTC)
                return at
            if locked:
                _first(connection, UNLOCK, values)
            if other := _first(connection, OTHER_NAME, values):
                raise StoreError(
                    f"lease {name}: PostgreSQL's key for it is that of {other!r}, and both would exclude each other: "
                    f"give the job, the lock or the namespace another name."
                )
            return None

    def renew(self, name: str, holder: str) -> bool:
        return bool(self._ask(RENEW, name, holder))

    def release(self, name: str, holder: str) -> None:
        with self._lock:
            has_it, own = self._held.get(name, ("", None))
        if own is None or has_it != holder or own.closed or self._process != os.getpid():
            self._ask(END_OURS, name, holder)  # as the process does that renews for the job's
            return
        with self._connection(name, own) as connection:
            if _first(connection, RELEASE, {"key": _key(name), "name": name, "holder": holder}):
                with self._lock:
                    del self._held[name]

    def break_lease(self, name: str, holder: str | None = None) -> bool:
        return bool(self._ask(END_WHOSEVER if holder is None else DISOWN, name, holder))

    def held(self, name: str) -> bool:
        return bool(self._ask(HELD, name))

    def held_in(self, folder: str) -> set[str]:
        with self._connection(folder) as connection:
            return {name for (name,) in _all(connection, HELD_IN, {"folder": folder})}

    # -- the protocol of SessionLeases ------------------------------------------------------------------------------

    def gone(self, name: str, holder: str) -> bool:
        has_it, connection = self._held.get(name, ("", None))
        return has_it == holder and connection is not None and not connection.is_open()

    def orphaned(self, folder: str) -> list[str]:
        with self._connection(folder) as connection:
            return [name for (name,) in _all(connection, ORPHANED, {"folder": folder})]

    # -- connections ------------------------------------------------------------------------------------------------

    def _ask(self, statement: str, name: str, holder: str | None = None) -> Any:
        with self._connection(name) as connection:
            return _first(connection, statement, {"key": _key(name), "name": name, "holder": holder})

    def _keep(self, name: str, holder: str, connection: _Connection) -> None:
        with self._lock:
            _, before = self._held.get(name, ("", None))
            self._held[name] = (holder, connection)
        if before is not None:  # of a lease that was lost
            before.close()

    @contextmanager
    def _connection(self, name: str, own: _Connection | None = None) -> Iterator[_Connection]:
        """A connection, which is idle afterwards unless it holds a lease; an error costs it."""
        connection = own
        try:
            connection = connection or self._taken()
            yield connection
        except BaseException as error:
            if connection is not None:  # it may have a lock, or half an answer
                connection.close()
            if isinstance(error, psycopg.Error):
                raise _translated(name, error) from error
            raise
        with self._lock:
            if all(one is not connection for _, one in self._held.values()):
                self._idle.append(connection)

    def _taken(self) -> _Connection:
        with self._lock:
            if self._process != os.getpid():  # a fork: closing them here would end the other process's leases
                self._of_parent, self._process = (self._idle, self._held), os.getpid()
                self._idle, self._held = [], {}
            while self._idle:
                if (connection := self._idle.pop()).is_open():
                    return connection
        made = _Connection.connect(self._address, autocommit=True, prepare_threshold=None, **ASIDE)
        try:
            _begin(made)
        except BaseException:
            made.close()
            raise
        return made


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """One whose calls end: a server may accept what is sent and never answer."""

    def wait(self, gen: Any, interval: float = 0.1, *more: Any, **options: Any) -> Any:
        return super().wait(_bounded(gen, round(CALL_TIMEOUT / interval)), interval, *more, **options)

    def is_open(self) -> bool:
        """Whether the server has not closed it, as far as is known here: no call."""
        try:
            with self.lock:
                for _ in range(2):  # the server's last words, and then the end
                    if not self.closed:
                        self.pgconn.consume_input()
        except psycopg.OperationalError:
            self.close()
        return not self.closed


def _begin(connection: _Connection) -> None:
    """Make sure that the session is the server's own, and that it ends with its client."""
    if _first(connection, "SELECT pg_backend_pid()") != connection.info.backend_pid:
        raise StoreError(
            "RUNONCE_LEASES leads to a connection pooler, such as PgBouncer: a lock would stay with one of its "
            "sessions while others are handed to us. Name the server itself (on Azure port 5432, not 6432)."
        )
    _first(connection, SESSION)


def _bounded(steps: Any, intervals: int) -> Generator[Any, Any, Any]:
    """The steps of psycopg, until it has waited for so many intervals in vain."""
    try:
        wanted = next(steps)
        while intervals:
            ready = yield wanted
            intervals -= not ready
            wanted = steps.send(ready)
    except StopIteration as ended:
        return ended.value
    raise psycopg.OperationalError(f"no answer within {CALL_TIMEOUT:g} s")


def _key(name: str) -> int:
    """A lock's number: 64 bits of the name's hash."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


def _all(
    connection: _Connection, statement: str, values: dict[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(statement, values).fetchall()
    except psycopg.errors.UndefinedTable:
        with suppress(psycopg.errors.UniqueViolation):  # somebody else makes it at the same instant
            connection.execute(TABLE)
        return connection.execute(statement, values).fetchall()


def _first(connection: _Connection, statement: str, values: dict[str, Any] | None = None) -> Any:
    """The first column of the first row, or None."""
    rows = _all(connection, statement, values)
    return rows[0][0] if rows else None


def _translated(name: str, error: psycopg.Error) -> StoreError:
    said = str(error).strip().partition("\n")[0][:200]
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailableError(f"lease {name}: PostgreSQL did not answer ({said}).")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        said += "; docs/locks.md says what its role needs"
    return StoreError(f"lease {name}: PostgreSQL refused ({said}).")
