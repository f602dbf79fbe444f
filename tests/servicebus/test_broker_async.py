from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient

from servicebus.launcher import Queue, Topic
from tests.support.service_bus import broker_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from servicebus.launcher import Broker

pytestmark = sdk_forgets_sockets
broker = broker_fixture(Queue("q", lock=30, max_delivery=2), Topic("orders", ("billing",)))


def test_the_async_client_settles_in_every_way(broker: Broker) -> None:
    """Completing, abandoning, deferring and dead-lettering work for the async client too."""

    async def scenario() -> None:
        async with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender("q") as sender,
            client.get_queue_receiver("q") as receiver,
            client.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters,
        ):
            await sender.send_messages([ServiceBusMessage(text) for text in "abcd"])
            completed, abandoned, deferred, dead = await receiver.receive_messages(4, max_wait_time=3)
            await receiver.complete_message(completed)
            await receiver.abandon_message(abandoned)
            await receiver.defer_message(deferred)
            await receiver.dead_letter_message(dead, reason="r")
            [again] = await receiver.receive_messages(1, max_wait_time=3)
            assert (str(again), again.delivery_count) == ("b", 1)
            await receiver.complete_message(again)
            [fetched] = await receiver.receive_deferred_messages(deferred.sequence_number)
            await receiver.complete_message(fetched)
            [letter] = await dead_letters.receive_messages(1, max_wait_time=3)
            assert (str(letter), letter.dead_letter_reason) == ("d", "r")
            await dead_letters.complete_message(letter)
            assert await receiver.peek_messages(5, sequence_number=1) == []

    asyncio.run(scenario())


def test_the_async_client_schedules_and_subscribes(broker: Broker) -> None:
    """A message scheduled by the async client reaches an async subscriber when due."""

    async def scenario() -> None:
        async with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_topic_sender("orders") as sender,
            client.get_subscription_receiver("orders", "billing") as receiver,
        ):
            at = datetime.now(UTC) + timedelta(seconds=1)
            await sender.schedule_messages(ServiceBusMessage("x"), at)
            [message] = await receiver.receive_messages(1, max_wait_time=5)
            assert datetime.now(UTC) >= at
            await receiver.complete_message(message)

    asyncio.run(scenario())
