"""Who has the latest receipt of a Storage queue's message may hide, show or delete it, and nobody else: what a
Functions worker goes by, on Azurite and on the simulation's queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from runonce.transports.protocols import Outgoing, Receipt
from runonce.transports.settlement import DeadLetter
from runonce.transports.storage import put_aside
from tests.support.simulated import SimulatedStoragePipe
from tests.support.transports import LOCK, Pipe, StoragePipe, make_handler, none_come, receive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.messages.definition import Handler
    from runonce.transports.protocols import Received
    from runonce.transports.storage import StorageSender

BODY = b'{"id": 1}'


LONG = 60
"""Seconds that a received message stays hidden where no test waits for that."""


def made(request: pytest.FixtureRequest, hidden: int) -> Iterator[Pipe]:
    """A way to the queues of the test's parameter."""
    if request.param == "simulated":
        pipe: Pipe = SimulatedStoragePipe(hidden)
    else:
        pipe = StoragePipe(request.getfixturevalue("azurite"), hidden)
    yield pipe
    pipe.close()


@pytest.fixture(params=["azurite", "simulated"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    """Each of them in turn."""
    yield from made(request, LONG)


@pytest.fixture(params=["azurite", "simulated"])
def brief(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    """The same, with messages that are soon shown again."""
    yield from made(request, LOCK)


def sender(pipe: Pipe) -> StorageSender:
    """What a worker shows, hides and deletes with."""
    return cast("StorageSender", pipe.sender)


def receipt(received: Received) -> Receipt:
    """Of what was received just now."""
    native: Any = received.native
    return native if isinstance(native, Receipt) else Receipt(str(native.id), str(native.pop_receipt))


def one(pipe: Pipe) -> tuple[Handler, Receipt]:
    """A handler whose only message was received, and its receipt."""
    to = make_handler(pipe.queue())
    pipe.send(to, BODY)
    [received] = receive(pipe.inbox(to))
    return to, receipt(received)


def test_what_is_deleted_is_gone(pipe: Pipe) -> None:
    """Once; after that its receipt says nothing to anybody, which is no error."""
    to, mine = one(pipe)
    assert sender(pipe).remove(to.queue, mine)
    assert not sender(pipe).remove(to.queue, mine)
    assert not sender(pipe).show(to.queue, mine, 0.0)
    assert pipe.count(to.queue) == 0


def test_what_is_shown_comes_again_at_once_as_the_same_delivery_counted_on(pipe: Pipe) -> None:
    """It does not wait until it would be shown by itself."""
    to, mine = one(pipe)
    assert sender(pipe).show(to.queue, mine, 0.0)
    [again] = receive(pipe.inbox(to), patience=LONG / 2)
    assert (again.delivery.body, again.delivery.delivery_count) == (BODY, 2)


def test_what_is_hidden_anew_stays_hidden(brief: Pipe) -> None:
    """For as long as it is told to, beyond what it was received for."""
    to, mine = one(brief)
    assert sender(brief).show(to.queue, mine, 600.0)
    assert none_come(brief.inbox(to), LOCK + 1.5)
    assert brief.count(to.queue) == 1


def test_each_of_them_makes_a_new_receipt(pipe: Pipe) -> None:
    """The one before is worth nothing: the host's own, once the worker has hidden its message anew."""
    to, mine = one(pipe)
    hosts = Receipt(mine.message_id, mine.pop_receipt)
    assert (mine.is_ours, hosts.is_ours) == (False, False)
    assert sender(pipe).show(to.queue, mine, 600.0)
    assert mine.is_ours
    assert mine.pop_receipt != hosts.pop_receipt
    assert not sender(pipe).show(to.queue, hosts, 0.0)
    assert not sender(pipe).remove(to.queue, hosts)
    assert sender(pipe).show(to.queue, mine, 600.0)
    assert sender(pipe).remove(to.queue, mine)


def test_a_receipt_is_worth_nothing_once_somebody_else_has_the_message(brief: Pipe) -> None:
    """It was hidden for too short a time, and is the next one's."""
    to, mine = one(brief)
    [again] = receive(brief.inbox(to))
    assert not sender(brief).remove(to.queue, mine)
    assert not sender(brief).show(to.queue, mine, 0.0)
    assert sender(brief).remove(to.queue, receipt(again))
    assert brief.count(to.queue) == 0


def test_equal_ids_are_two_messages(pipe: Pipe) -> None:
    """Nothing is left out as a duplicate."""
    to = make_handler(pipe.queue())
    sender(pipe).send(to.target, [Outgoing(BODY, "m-1"), Outgoing(BODY, "m-1")])
    assert len(receive(pipe.inbox(to), 2)) == 2


def test_what_a_worker_puts_aside_is_among_the_dead_letters_with_its_reason(pipe: Pipe) -> None:
    """Beside the message itself, which is deleted after that."""
    to = make_handler(pipe.queue())
    [sent] = pipe.send(to, BODY)
    [received] = receive(pipe.inbox(to))
    put_aside(sender(pipe), to.queue, received.delivery, DeadLetter("Failed", "ValueError: no"))
    assert (pipe.count(to.queue), pipe.dead_count(to.queue)) == (1, 1)
    assert sender(pipe).remove(to.queue, receipt(received))
    [dead] = pipe.dead_letters(to).peek(10)
    assert (dead.reason, dead.description) == ("Failed", "ValueError: no")
    assert (dead.delivery.body, dead.delivery.message_id) == (BODY, sent)
    assert (pipe.count(to.queue), pipe.dead_count(to.queue)) == (0, 1)
