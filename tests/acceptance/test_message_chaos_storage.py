"""A thousand messages sent twice over Storage queues while workers are killed; Service Bus has a file of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support import message_chaos
from tests.support.transports import StoragePipe

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is what is tested here")


@pytest.mark.slow
def test_a_thousand_messages_sent_twice_have_a_thousand_effects(settings: Settings, tmp_path: Path) -> None:
    """However often workers are killed: 1,000 effects, none lost, none twice, every message settled."""
    pipe = StoragePipe(str(settings.storage.connection_string))
    outcome = message_chaos.run(settings, tmp_path, pipe, seed=7, environ={})
    pipe.close()
    message_chaos.check(outcome)


def test_batches_of_killed_workers_lose_nothing_and_commit_nothing_twice(
    settings: Settings, tmp_path: Path
) -> None:
    """Each message twice, workers killed: every message is handled and settled, and each row committed once.

    An effect that a step stands for repeats only by a death between the two, in one message of each call.
    """
    pipe = StoragePipe(str(settings.storage.connection_string))
    messages, kills = 80, 2
    outcome = message_chaos.run(
        settings,
        tmp_path,
        pipe,
        seed=7,
        environ={},
        handler=message_chaos.BATCHES,
        messages=messages,
        workers_at_once=2,
        most_kills=kills,
    )
    pipe.close()
    assert outcome.kills >= 1
    assert set(outcome.witnessed) >= {str(number) for number in range(1, messages, 2)}
    assert set(outcome.effects) == {str(number) for number in range(0, messages, 2)}
    assert set(outcome.effects.values()) == {1}
    repeated = {key: times for key, times in outcome.witnessed.items() if times > 1}
    assert len(repeated) <= 2 * outcome.kills, repeated
    assert {key for key in repeated if int(key) % 2 == 0} == set()
    assert (outcome.left, outcome.dead) == (0, 0)
