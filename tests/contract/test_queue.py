from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from azure.storage.queue import QueueClient
from support.kit import Kit, fresh_settings, memory_kit

from runonce.runs.requests import send_request
from runonce.stores.azure.stores import azure_stores
from runonce.stores.protocols import QueueItem

if TYPE_CHECKING:
    from runonce.stores.protocols import Stores

BODIES = {
    "json": '{"job":"nightly","fire_time":"2026-11-29T03:00:00Z"}',
    "markup": "<a href='x'>&amp;\"\\</a> ]]>",
    "unicode": "İstanbul ş 日本 \N{PILE OF POO}",
    "lines": "one\r\ntwo\tthree\n",
    "base64_like": "aGVsbG8=",
    "spaces": "  padded  ",
    "long": "y" * 30_000,
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_comes_back_as_it_was(queue_kit: Kit, name: str) -> None:
    """Whatever text is sent is received, character for character."""
    queue_kit.stores.requests.send(BODIES[name])
    item = queue_kit.stores.requests.receive(visibility=30)
    assert item is not None
    assert (item.body, item.dequeue_count) == (BODIES[name], 1)


def test_an_empty_queue_gives_none(queue_kit: Kit) -> None:
    """Receiving is None when there is nothing, on the first use and later."""
    assert queue_kit.stores.requests.receive(visibility=30) is None
    assert queue_kit.stores.requests.receive(visibility=30) is None


def test_a_received_message_is_hidden(queue_kit: Kit) -> None:
    """A message that was received is not handed to anybody else meanwhile."""
    queue_kit.stores.requests.send("only")
    assert queue_kit.stores.requests.receive(visibility=30) is not None
    assert queue_kit.stores.requests.receive(visibility=30) is None


def test_a_message_not_deleted_comes_again(queue_kit: Kit) -> None:
    """A message whose visibility runs out is handed out again, as the same one, with a higher count."""
    queue_kit.stores.requests.send("again")
    first = queue_kit.stores.requests.receive(visibility=1)
    assert first is not None
    second = queue_kit.until(lambda: queue_kit.stores.requests.receive(visibility=30))
    assert (second.id, second.body, second.dequeue_count) == (first.id, "again", 2)
    assert second.receipt != first.receipt


def test_a_deleted_message_is_gone(queue_kit: Kit) -> None:
    """A deleted message never comes again, and deleting it twice is silent."""
    queue_kit.stores.requests.send("gone")
    queue_kit.stores.requests.send("kept")
    first = queue_kit.stores.requests.receive(visibility=1)
    assert first is not None
    queue_kit.stores.requests.delete(first)
    queue_kit.stores.requests.delete(first)
    assert queue_kit.until(lambda: queue_kit.stores.requests.receive(visibility=1)).body == "kept"
    # "gone" would be visible again no later than "kept", which was received after it.
    assert queue_kit.until(lambda: queue_kit.stores.requests.receive(visibility=30)).body == "kept"
    assert queue_kit.stores.requests.receive(visibility=30) is None


def test_a_stale_receipt_deletes_nothing(queue_kit: Kit) -> None:
    """Who lets the visibility run out cannot delete the message under whoever received it since."""
    queue_kit.stores.requests.send("busy")
    first = queue_kit.stores.requests.receive(visibility=1)
    assert first is not None
    second = queue_kit.until(lambda: queue_kit.stores.requests.receive(visibility=1))
    queue_kit.stores.requests.delete(first)
    third = queue_kit.until(lambda: queue_kit.stores.requests.receive(visibility=30))
    assert third.id == second.id
    queue_kit.stores.requests.delete(third)


def test_deleting_what_never_was_is_silent(queue_kit: Kit) -> None:
    """Deleting a message nobody knows raises nothing, whether or not the queue exists."""
    queue_kit.stores.requests.delete(QueueItem("2f3b4c1e-0000-4000-8000-000000000000", "AgAAAAMAAAA=", "", 1))
    queue_kit.stores.requests.send("x")
    queue_kit.stores.requests.delete(QueueItem("2f3b4c1e-0000-4000-8000-000000000000", "AgAAAAMAAAA=", "", 1))


def test_a_delayed_message_comes_later(queue_kit: Kit) -> None:
    """A message sent with a delay is not there at once, and is there after it."""
    queue_kit.stores.requests.send("later", delay=1)
    assert queue_kit.stores.requests.receive(visibility=30) is None
    assert queue_kit.until(lambda: queue_kit.stores.requests.receive(visibility=30)).body == "later"


def test_a_sent_message_can_be_hidden_for_longer(queue_kit: Kit) -> None:
    """Whoever sent a message can hide it again and again, and show or delete it, without having received it."""
    queue = queue_kit.stores.requests
    item = queue.send("switch", delay=1)
    for _ in range(2):
        hidden = queue.hide(item, 3)
        assert hidden is not None
        assert (hidden.id, hidden.body) == (item.id, "switch")
        item = hidden
    queue.send("beside", delay=1)
    assert queue_kit.until(lambda: queue.receive(visibility=30)).body == "beside"
    assert queue.receive(visibility=30) is None
    received = queue_kit.until(lambda: queue.receive(visibility=1))
    assert (received.body, received.dequeue_count) == ("switch", 1)
    assert queue.hide(item, 30) is None  # it is the receiver's now
    queue.delete(item)
    again = queue_kit.until(lambda: queue.receive(visibility=30))
    queue.delete(again)
    assert queue.hide(again, 30) is None


def test_a_sent_message_can_be_deleted(queue_kit: Kit) -> None:
    """What `send` returned is enough to take a message back."""
    queue = queue_kit.stores.requests
    queue.delete(queue.send("taken back", delay=1))
    queue.send("kept", delay=1)
    assert queue_kit.until(lambda: queue.receive(visibility=30)).body == "kept"
    assert queue.receive(visibility=30) is None


def test_a_message_nobody_received_in_time_is_dropped() -> None:
    """A message is gone once its time to live is over, while one that lives longer is not."""
    kit = memory_kit()
    assert kit.clock is not None
    kit.stores.requests.send("short", time_to_live=120)
    kit.stores.requests.send("long", time_to_live=121)
    kit.clock.advance(120)
    item = kit.stores.requests.receive(visibility=30)
    assert item is not None
    assert item.body == "long"
    assert kit.stores.requests.receive(visibility=30) is None


def test_the_server_is_told_how_long_a_message_lives(azurite: str) -> None:
    """Azure, which drops messages by itself, is given the time to live that was asked for."""
    settings = fresh_settings(azurite)
    azure_stores(settings).requests.send("short", time_to_live=120)
    with QueueClient.from_connection_string(azurite, settings.request_queue) as client:
        (message,) = client.peek_messages()
        assert message.expires_on is not None
        assert message.inserted_on is not None
        assert (message.expires_on - message.inserted_on).total_seconds() == 120


def test_a_retry_of_more_than_a_week_is_hidden_for_a_week_and_put_back(azure: Stores) -> None:
    """No queue hides a message for longer; Azure refuses more."""
    fire_time = datetime(2026, 11, 29, 3, tzinfo=UTC)
    send_request(azure.requests, "nightly", fire_time, "retrying", delay=timedelta(days=8.4))


def test_queues_of_two_namespaces_are_two(azurite: str) -> None:
    """What one namespace sends, another never receives."""
    one, two = (azure_stores(fresh_settings(azurite)).requests for _ in range(2))
    one.send("for one")
    assert two.receive(visibility=30) is None
    assert one.receive(visibility=30) is not None


@pytest.mark.parametrize(
    "body", ["not base64 at all", '{"job":"x"}', "/+8=", "abc", "ş<>&", "{}"], ids=lambda body: body[:8]
)
def test_a_foreign_body_is_handed_over_as_it_is(azurite: str, body: str) -> None:
    """A message somebody sent by hand without Base64, or with bytes that are no text, comes as it was sent."""
    settings = fresh_settings(azurite)
    queue = azure_stores(settings).requests
    assert queue.receive(visibility=1) is None
    with QueueClient.from_connection_string(azurite, settings.request_queue) as client:
        client.send_message(body)
    item = queue.receive(visibility=30)
    assert item is not None
    assert item.body == body


def test_bodies_are_base64_on_the_wire(azurite: str) -> None:
    """What is sent is Base64, which is what the Functions host's queue trigger reads unless told otherwise."""
    settings = fresh_settings(azurite)
    azure_stores(settings).requests.send("İ")
    with QueueClient.from_connection_string(azurite, settings.request_queue) as client:
        (message,) = client.peek_messages()
        assert message.content == "xLA="


def test_the_first_use_makes_the_queue(azurite: str) -> None:
    """Sending and receiving both work in an account that holds no queue yet, and lose nothing."""
    assert azure_stores(fresh_settings(azurite)).requests.receive(visibility=1) is None
    queue = azure_stores(fresh_settings(azurite)).requests
    queue.send("first")
    item = queue.receive(visibility=30)
    assert item is not None
    assert item.body == "first"


def test_each_operation_is_one_request(azurite: str, calls) -> None:  # noqa: ANN001 - conftest's
    """Once the queue exists, sending, hiding, receiving and deleting cost one storage call each."""
    queue = azure_stores(fresh_settings(azurite), transport=calls).requests
    queue.send("made")
    calls.made.clear()
    sent = queue.hide(queue.send("x"), 0)
    assert sent is not None
    item = queue.receive(visibility=30)
    assert item is not None
    queue.delete(item)
    assert [made.partition(" ")[0] for made in calls.made] == ["POST", "PUT", "GET", "DELETE"]
