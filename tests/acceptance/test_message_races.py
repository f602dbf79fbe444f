"""Handlers on the real Azurite: races, a paused holder, an unreachable table, and storage calls counted."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import begun, delivery, handling, silence
from support.namespaces import fresh_settings
from support.proxy import proxies, proxy

from runonce.clock import SystemClock
from runonce.errors import Fenced, HostStopping
from runonce.messages.consumer import Consumer
from runonce.messages.definition import handler
from runonce.messages.deliver import Deliverer
from runonce.messages.effects import read_effects
from runonce.messages.sending import outgoing, send_all
from runonce.stores.azure.stores import azure_stores
from runonce.stores.azure.wire import services
from runonce.testing import Complete, MemorySender, Reschedule
from runonce.transports.storage import StorageTransport

if TYPE_CHECKING:
    from conftest import Calls

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from runonce.testing.proxy import StorageProxy

__all__ = ["proxies", "proxy"]

RACES = 100
SHORT = 3
"""Seconds of a claim's lease where a test waits for its end: 3, then 2 for the header's resolution."""
PATIENCE = 30.0


def host_on(settings: Settings, name: str, *, stores: Stores | None = None, beats: bool = True) -> Deliverer:
    """A host with connections of its own."""
    made = Deliverer(stores or azure_stores(settings), MemorySender(), settings, SystemClock(), host=name)
    if not beats:
        silence(made)
    return made


def rows(settings: Settings, one: Handler) -> list[dict[str, Any]]:
    """What a handler committed."""
    return list(read_effects(azure_stores(settings).claims, settings.namespace, one.name))


def test_duplicates_at_the_same_instant(azurite: str) -> None:
    """A hundred times a message comes to two hosts at the same instant: one effect each, and the loser comes again."""
    settings = fresh_settings(azurite)
    outside: list[str] = []

    def body(message: Message) -> None:
        outside.append(message.key)
        message.commit({f"row {message.key}": {"n": 1}})

    one = handling(body)
    hosts = [host_on(settings, name) for name in ("left", "right")]
    hosts[0].deliver(one, delivery({"id": "warm"}))  # makes the table
    start = threading.Barrier(2)

    def race(host: Deliverer) -> list[Any]:
        settlements = []
        for n in range(RACES):
            start.wait(PATIENCE)
            settlements.append(host.deliver(one, delivery({"id": f"k{n}"})))
        return settlements

    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(race, hosts)
    assert sorted(outside) == sorted(["warm", *[f"k{n}" for n in range(RACES)]])
    assert len(rows(settings, one)) == RACES + 1
    for pair in zip(left, right, strict=True):
        assert Complete() in pair
        assert all(isinstance(s, Reschedule) or s in (Complete(), Complete(duplicate=True)) for s in pair)
    for n in range(RACES):
        assert hosts[0].deliver(one, delivery({"id": f"k{n}"}, count=2)) == Complete(duplicate=True)


def test_a_paused_owner_is_taken_over_and_changes_nothing(azurite: str) -> None:
    """An holder that shows no sign of life is taken over, by the server's clock; waking, its commit is rolled back."""
    settings = fresh_settings(azurite, claim_lease=SHORT)
    one = handling(lambda m: m.commit({"row": {"by": "heir", "token": m.fencing_token}}))
    paused_host = host_on(settings, "paused", beats=False)
    heir = host_on(settings, "heir")
    paused = begun(paused_host, one)
    started = time.monotonic()
    waits = 0
    while isinstance(settlement := heir.deliver(one, delivery(count=2)), Reschedule):
        assert "in progress on paused" in settlement.reason
        assert time.monotonic() - started < PATIENCE
        waits += 1
        threading.Event().wait(0.2)
    assert settlement == Complete()
    assert waits > 0
    assert time.monotonic() - started > SHORT + 1, "the lease and the resolution of the server's clock"
    with pytest.raises(Fenced, match="heir with token 2") as caught:
        paused.message.commit(
            {"another row": {"by": "paused"}}
        )  # which is not there: only the claim can refuse it
    assert isinstance(paused_host.finish(paused, None, caught.value), Reschedule)
    assert [(row["name"], row["by"], row["token"]) for row in rows(settings, one)] == [("row", "heir", 2)]
    assert paused_host.deliver(one, delivery(count=3)) == Complete(duplicate=True)


def test_a_working_owner_is_not_taken_over(azurite: str) -> None:
    """A message that takes twice its lease is kept by its signs of life, and is handled once."""
    settings = fresh_settings(azurite, claim_lease=SHORT)
    holder, other = host_on(settings, "holder"), host_on(settings, "other")
    one = handling()
    working = begun(holder, one)
    until = time.monotonic() + 2 * SHORT + 3
    while time.monotonic() < until:
        assert isinstance(other.deliver(one, delivery(count=2)), Reschedule)
        threading.Event().wait(0.25)
    assert working.claim.held
    assert holder.finish(working, None, None) == Complete()
    assert other.deliver(one, delivery(count=2)) == Complete(duplicate=True)


@pytest.mark.slow
def test_an_unreachable_table_loses_nothing(azurite: str, proxy: StorageProxy) -> None:
    """While the table is out of reach for 20 s messages wait; then each has had one effect and none is put aside."""
    settings = fresh_settings(proxy.connection_string)
    some = threading.Semaphore(0)
    outside: list[str] = []

    def body(message: Message) -> None:
        outside.append(message.key)
        message.commit({f"row {message.key}": {"n": 1}})
        some.release()

    def handle(message: Message) -> None:
        body(message)

    one = handler(queue=f"q{settings.namespace}", key="id", name="send_invoice", concurrency=4)(handle)
    direct = StorageTransport(services(fresh_settings(azurite).storage, "queue")[0], settings.claim_lease)
    send_all(direct.sender(), one, [outgoing(one, {"id": f"k{n}"}) for n in range(24)])
    host = host_on(settings, "host")
    consumer = Consumer(
        host, StorageTransport(services(settings.storage, "queue")[0], settings.claim_lease), one
    )
    thread = threading.Thread(target=consumer.run)
    thread.start()
    for _ in range(4):
        assert some.acquire(timeout=PATIENCE)
    proxy.table.refuse()
    threading.Event().wait(20)
    proxy.table.restore()
    # Some have waited for the fourth or fifth time by now, so they come half a minute later.
    for _ in range(20):
        assert some.acquire(timeout=PATIENCE + 60)
    host.stop.set(HostStopping())
    thread.join()
    assert sorted(row["key"] for row in rows(settings, one)) == sorted(f"k{n}" for n in range(24))
    letters = direct.dead_letters(one)
    assert letters.peek(10) == []
    assert set(outside) == {f"k{n}" for n in range(24)}
    inbox = direct.inbox(one)
    assert inbox.receive(1, 0) == []
    for closing in (inbox, letters):
        closing.close()


def test_storage_calls_are_counted(settings: Settings, azure: Stores, calls: Calls) -> None:
    """Two calls on a first delivery, with or without rows of its own; one on a redelivery of finished work."""
    host = host_on(settings, "host", stores=azure, beats=False)
    plain = handling()
    rowed = handling(lambda m: m.commit({f"row {n}": {"n": n} for n in range(20)}), name="rowed")
    host.deliver(plain, delivery({"id": "warm"}))  # makes the table

    def counted(one: Handler, of: Any) -> list[str]:
        calls.made.clear()
        host.deliver(one, of)
        return [call.partition("?")[0].partition("(")[0] for call in calls.made]

    insert, replace, read = (f"{method} /{settings.claims_table}" for method in ("POST", "PUT", "GET"))
    assert counted(plain, delivery()) == [insert, replace]
    assert counted(rowed, delivery()) == [insert, "POST /$batch"]
    for one, count in itertools.product((plain, rowed), (2, 9)):
        assert counted(one, delivery(count=count)) == [read]
    assert counted(plain, delivery()) == [insert, read], "a duplicate that is not marked as one"
    assert counted(handling(lambda _: 1 / 0, name="failing"), delivery()) == [insert, replace]
