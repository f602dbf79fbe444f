"""A thousand messages sent twice over Service Bus while workers are killed; Storage queues have a file of their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from servicebus.launcher import Queue
from tests.support import message_chaos
from tests.support.service_bus import broker_fixture, sdk_forgets_sockets
from tests.support.transports import BusPipe

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from servicebus.launcher import Broker

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="SIGKILL is what is tested here"),
    sdk_forgets_sockets,
]

broker = broker_fixture(Queue("chaos", lock=5, max_delivery=10, dedup=600))


@pytest.mark.slow
def test_a_thousand_messages_sent_twice_have_a_thousand_effects(
    settings: Settings, tmp_path: Path, broker: Broker
) -> None:
    """However often workers are killed: 1,000 effects, none lost, none twice, every message settled."""
    pipe = BusPipe(broker, ["chaos"])
    environ = {"RUNONCE_SERVICEBUS": broker.connection_string}
    outcome = message_chaos.run(settings, tmp_path, pipe, seed=11, environ=environ)
    pipe.close()
    message_chaos.check(outcome)
