"""What is PostgreSQL's and Redis's own about leases there; what they have in common is in test_leases."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from support.held import held
from support.pgbouncer import pgbouncer

from runonce.clock import SystemClock
from runonce.errors import SettingsError, StoreError, StoreUnavailableError
from runonce.execution.lease import Lease
from runonce.settings import LeaseTerms
from runonce.stores import postgresql
from runonce.stores.postgresql import PostgreSQLLeases
from runonce.stores.redis import PREFIX, RedisLeases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.errors import LeaseLost
    from runonce.stores.protocols import LeaseStore

LONG = 60
pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has neither kill -9 nor SIGSTOP")


def a_holder() -> str:
    return str(uuid.uuid4())


def a_lock() -> str:
    return f"t/{uuid.uuid4().hex}"


@pytest.fixture
def leases(postgresql_address: str) -> Iterator[PostgreSQLLeases]:
    made = PostgreSQLLeases(postgresql_address)
    yield made
    made.close()


def until_acquired(leases: LeaseStore, name: str, holder: str, seconds: float) -> float:
    """Seconds until the lease could be had."""
    began = time.monotonic()
    while leases.acquire(name, holder, LONG) is None:
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
    return time.monotonic() - began


# -- holders that are killed or paused --------------------------------------------------------------------------------


def test_a_killed_holders_lock_is_free_at_once(postgresql_address: str, leases: PostgreSQLLeases) -> None:
    """After kill -9 PostgreSQL grants a lease of a minute to the next at once, for its connection has ended."""
    lock, name = a_lock(), a_holder()
    with held(postgresql_address, lock, name, LONG) as process:
        assert leases.acquire(lock, a_holder(), LONG) is None
        process.kill()
        until_acquired(leases, lock, a_holder(), 10)
    assert not leases.renew(lock, name)


def test_a_killed_holders_key_is_waited_out(redis_address: str) -> None:
    """After kill -9 Redis keeps the key to the end of its term, for nothing tells it."""
    leases, lock = RedisLeases(redis_address), a_lock()
    with held(redis_address, lock, a_holder(), 2) as process:
        process.kill()
        process.wait()
        assert leases.held(lock)
        until_acquired(leases, lock, a_holder(), 10)
    leases.close()


@pytest.mark.parametrize("server", ["postgresql", "redis"])
def test_a_paused_holder_is_replaced_after_its_term(server: str, request: pytest.FixtureRequest) -> None:
    """Stopped for longer than its term, its connection being open, it is replaced and, woken, refused."""
    address = request.getfixturevalue(f"{server}_address")
    other: PostgreSQLLeases | RedisLeases = (PostgreSQLLeases if server == "postgresql" else RedisLeases)(
        address
    )
    lock, name = a_lock(), a_holder()
    with held(address, lock, a_holder(), 2) as process:
        process.send_signal(signal.SIGSTOP)
        assert other.acquire(lock, name, LONG) is None
        until_acquired(other, lock, name, 10)
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate("renew\n")
        assert said == "False\n"
    assert other.renew(lock, name)
    other.close()


# -- PostgreSQL -------------------------------------------------------------------------------------------------------


def test_a_run_is_told_when_its_connection_has_ended(
    postgresql_address: str, leases: PostgreSQLLeases
) -> None:
    """Long before its next renewal it hears that the server has ended the session that held its lock."""
    lock, told = a_lock(), threading.Event()
    lost: list[LeaseLost] = []
    lease = Lease.acquire(leases, lock, LeaseTerms(60, 25, 5), SystemClock())
    assert lease is not None
    lease.keep(lambda error: (lost.append(error), told.set())[0])
    with psycopg.connect(postgresql_address, autocommit=True) as server:
        server.execute("SELECT pg_terminate_backend(pid) FROM runonce_leases WHERE name = %s", (lock,))
    assert told.wait(15)
    assert not lease.held
    assert "the connection that held it has ended" in str(lost[0])
    lease.release()


def test_the_leases_of_the_dead_are_told_once(postgresql_address: str, leases: PostgreSQLLeases) -> None:
    """Whose connection ended while the lease ran is said once, to one host; what is held or was released is not."""
    folder = f"{a_lock()}/"
    kept, holder = f"{folder}kept", a_holder()
    assert leases.acquire(kept, holder, LONG)
    assert leases.acquire(f"{folder}done", holder, LONG)
    leases.release(f"{folder}done", holder)
    with held(postgresql_address, f"{folder}dead", a_holder(), LONG) as process:
        assert leases.orphaned(folder) == []
        process.kill()
        began, found = time.monotonic(), list[str]()
        while not found:
            assert time.monotonic() - began < 10
            found = leases.orphaned(folder)
    assert found == [f"{folder}dead"]
    assert leases.orphaned(folder) == []
    assert leases.renew(kept, holder)


def test_another_process_renews_and_releases(postgresql_address: str, leases: PostgreSQLLeases) -> None:
    """The process that renews for a job's needs no connection of the job's; its release frees the lock at once."""
    lock, holder = a_lock(), a_holder()
    keeper = PostgreSQLLeases(postgresql_address)
    assert leases.acquire(lock, holder, LONG)
    assert keeper.renew(lock, holder)
    assert not keeper.gone(lock, holder)
    keeper.release(lock, holder)
    assert keeper.acquire(lock, a_holder(), LONG)
    keeper.close()


def test_a_forked_child_ends_no_lease(leases: PostgreSQLLeases) -> None:
    """A child process asks on connections of its own, and what it has of its parent's it leaves alone."""
    lock, holder = a_lock(), a_holder()
    assert leases.acquire(lock, holder, LONG)
    if (child := os.fork()) == 0:
        os._exit(0 if leases.held(lock) and leases.acquire(lock, a_holder(), LONG) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not leases.gone(lock, holder)
    assert leases.renew(lock, holder)


def test_a_term_of_before_a_restart_is_waited_out(postgresql_address: str, leases: PostgreSQLLeases) -> None:
    """After a restart or failover no lock is left, and the holder may not know yet: others wait for its term."""
    folder, holder = f"{a_lock()}/", a_holder()
    lock = f"{folder}lock"
    assert leases.acquire(lock, holder, LONG)
    leases.close()  # as the server's end does to all connections
    other = PostgreSQLLeases(postgresql_address)
    with psycopg.connect(postgresql_address, autocommit=True) as server:
        server.execute(
            "UPDATE runonce_leases SET server = server - interval '1 day' WHERE name = %s", (lock,)
        )
        assert other.held(lock)
        assert other.acquire(lock, a_holder(), LONG) is None
        assert other.orphaned(folder) == []
        assert not other.renew(lock, holder)
        server.execute("UPDATE runonce_leases SET ends = now() WHERE name = %s", (lock,))
    assert not other.held(lock)
    assert other.acquire(lock, a_holder(), LONG)
    other.close()


def test_two_names_with_one_key_are_refused(
    leases: PostgreSQLLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock whose number is another's already is refused with both names, held or free, and that one goes on."""
    number, holder = uuid.uuid4().int >> 65, a_holder()
    monkeypatch.setattr(postgresql, "_key", lambda _: number)
    assert leases.acquire("t/first", holder, LONG)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"lease t/second: .* 't/first'.*another name"):
            leases.acquire("t/second", a_holder(), LONG)
        assert not leases.held("t/second")
        leases.release("t/first", holder)
    assert leases.acquire("t/first", holder, LONG)


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_is_refused(mode: str, postgresql_address: str) -> None:
    """Behind PgBouncer the first call says that a pooler is in between, and where to go instead."""
    with pgbouncer(postgresql_address, mode) as address:
        leases = PostgreSQLLeases(address)
        with pytest.raises(StoreError, match=r"RUNONCE_LEASES leads to a connection pooler.*5432"):
            leases.acquire(a_lock(), a_holder(), LONG)
        leases.close()


def test_a_session_that_does_not_answer_is_given_up(
    leases: PostgreSQLLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes the question and is silent costs the time-out, and no lease."""
    monkeypatch.setattr(postgresql, "CALL_TIMEOUT", 0.5)
    lock, holder = a_lock(), a_holder()
    assert leases.acquire(lock, holder, LONG)
    assert leases.renew(lock, holder)
    (idle,) = leases._idle
    backend = idle.info.backend_pid
    os.kill(backend, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError, match=rf"lease {lock}: .*no answer"):
            leases.renew(lock, holder)
    finally:
        os.kill(backend, signal.SIGCONT)
    assert leases.renew(lock, holder)


def test_who_may_not_make_the_table_is_told(postgresql_address: str) -> None:
    """A role without the right is sent to the page that has the statement."""
    with psycopg.connect(postgresql_address, autocommit=True) as server:
        server.execute("CREATE ROLE guest LOGIN")
        server.execute("CREATE SCHEMA empty AUTHORIZATION app")
        server.execute("GRANT USAGE ON SCHEMA empty TO guest")
        server.execute("ALTER ROLE guest SET search_path = empty")
    leases = PostgreSQLLeases(postgresql_address.replace("app@", "guest@"))
    with pytest.raises(StoreError, match=r"permission denied.*docs/locks.md says what its role needs"):
        leases.acquire(a_lock(), a_holder(), LONG)
    leases.close()


# -- Redis ------------------------------------------------------------------------------------------------------------


def test_a_key_lives_longer_than_its_term(redis_address: str) -> None:
    """By a hundredth and two milliseconds: the server's clock may be faster than that of the holder."""
    leases, lock, holder = RedisLeases(redis_address), a_lock(), a_holder()
    with redis.Redis.from_url(redis_address) as server:
        for call in (lambda: leases.acquire(lock, holder, 45), lambda: leases.renew(lock, holder)):
            before = time.monotonic()
            assert call()
            left, passed = server.pttl(PREFIX + lock), (time.monotonic() - before) * 1000
            assert 45_450 - passed <= left <= 45_452
    leases.close()


# -- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PostgreSQLLeases, RedisLeases])
def test_a_server_that_is_away_is_not_a_refusal(kind: type[PostgreSQLLeases | RedisLeases]) -> None:
    """Where nobody listens the outcome is unknown, and the message has no password."""
    scheme = "redis" if kind is RedisLeases else "postgresql"
    leases = kind(f"{scheme}://app:secret-word@127.0.0.1:1/0")
    with pytest.raises(StoreUnavailableError, match=r"lease t/x: .* did not answer") as caught:
        leases.acquire("t/x", a_holder(), LONG)
    assert "secret-word" not in str(caught.value)
    leases.close()


def test_a_wrong_password_is_a_refusal_of_redis(redis_address: str) -> None:
    """It is said to be one, and is not tried again as if nobody had answered."""
    leases = RedisLeases(redis_address.replace("//", "//app:secret-word@"))
    with pytest.raises(StoreError, match=r"Redis refused") as caught:
        leases.held("t/x")
    assert not isinstance(caught.value, StoreUnavailableError)
    assert "secret-word" not in str(caught.value)
    leases.close()


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        (PostgreSQLLeases, "postgresql://app:secret%zzword@host/db"),
        (RedisLeases, "redis://app:secret/word@host:6380/0"),
    ],
)
def test_an_address_that_cannot_be_read_is_told_without_its_password(
    kind: type[PostgreSQLLeases | RedisLeases], address: str
) -> None:
    """The setting is named with the form it has to have, and nothing of its value."""
    with pytest.raises(SettingsError, match=r"RUNONCE_LEASES is not .* percent-encoded") as caught:
        kind(address)
    assert "secret" not in str(caught.value)
    assert urlsplit(address).scheme + "://" in str(caught.value).replace("rediss", "redis")
