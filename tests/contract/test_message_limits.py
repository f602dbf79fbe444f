"""On a real Azurite: a token that could not be had, a lock that was lost, and names and sizes that Azure refuses."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import CredentialUnavailableError
from support.messages import begun, delivery, handling, silence

from runonce.clock import SystemClock
from runonce.errors import InputError, LeaseLost
from runonce.messages.deliver import Deliverer
from runonce.messages.effects import read_effects
from runonce.stores.azure.stores import azure_stores
from runonce.stores.azure.wire import Connections
from runonce.testing import Complete, MemorySender

if TYPE_CHECKING:
    from runonce.messages.message import Message
    from runonce.settings import Settings


@pytest.fixture
def host(settings: Settings) -> Deliverer:
    made = Deliverer(azure_stores(settings), MemorySender(), settings, SystemClock(), host="test")
    silence(made)
    return made


@pytest.mark.parametrize("failing", ["claim", "done", "blob", "lock"])
def test_a_token_that_could_not_be_had_costs_time_alone(
    host: Deliverer, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The identity endpoint gives no answer once, at any call of a message's: it is handled once, and completed."""
    hiccups = threading.Semaphore(0)
    handled: list[int] = []

    def hiccup(send: Any) -> Any:
        def sending(self: Any, request: Any, **options: Any) -> Any:
            if hiccups.acquire(blocking=False):
                raise CredentialUnavailableError(message="the identity endpoint gave no answer")
            return send(self, request, **options)

        return sending

    def body(message: Message) -> None:
        handled.append(message.attempt)
        if failing == "blob":
            hiccups.release()
            message.blobs.write("a", b"1")
        if failing == "done":
            hiccups.release()

    for transport in (RequestsTransport, Connections):
        monkeypatch.setattr(transport, "send", hiccup(transport.send))
    if failing in ("claim", "lock"):
        hiccups.release()
    one = handling(body, lock="index" if failing == "lock" else None)
    assert host.deliver(one, delivery()) == Complete()
    assert handled == [1]
    assert not hiccups.acquire(blocking=False)


def test_what_is_written_under_a_lock_is_fenced_by_it(host: Deliverer) -> None:
    """The lock's token rises from holder to holder, and a lock that was taken away stops every write."""
    one, other = handling(lock="index"), handling(lock="index", name="other", queue="others")
    old = begun(host, one, delivery({"id": "a"}))
    assert old.lock is not None
    old.message.blobs.write("index.json", b"first")
    host.stores.leases.break_lease(old.lock.name)
    old.lock._renewal_round()
    with pytest.raises(LeaseLost):
        old.message.blobs.write("index.json", b"late")
    new = begun(host, other, delivery({"id": "b"}))
    new.message.blobs.write("index.json", b"newer")
    tokens = [working.message.blobs._token for working in (old, new)]
    assert tokens == [1, 2]
    assert new.message.blobs.read("index.json") == b"newer"
    for working in (old, new):
        host.finish(working, None, None)


def test_the_largest_that_is_let_through_is_kept(host: Deliverer) -> None:
    """Rows at the limits are taken by the emulator, in one transaction with the claim; beyond them nothing is sent."""
    columns: dict[str, Any] = {f"c{n}": "中" * 10_000 for n in range(5)}
    rows: dict[str, Any] = {str(n): columns for n in range(11)}
    many: dict[str, Any] = {"wide": {f"Größe_{n}": n for n in range(250)}}
    refused: list[str] = []

    def body(message: Message) -> None:
        for wrong in ({"a": {"invoice-id": 1}}, {**rows, "more": columns, "yet": columns}):
            try:
                message.commit(wrong)
            except InputError as error:
                refused.append(str(error))
        message.commit({**rows, **many})

    assert host.deliver(handling(body), delivery()) == Complete()
    assert len(refused) == 2
    found = list(read_effects(host.stores.claims, host.settings.namespace, "send_invoice"))
    assert len(found) == 12
    assert {len(row) for row in found} == {7, 252}
