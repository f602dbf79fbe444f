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


def test_a_thousand_messages_sent_twice_have_a_thousand_effects(settings: Settings, tmp_path: Path) -> None:
    """However often workers are killed: 1,000 effects, none lost, none twice, every message settled."""
    pipe = StoragePipe(str(settings.storage.connection_string))
    outcome = message_chaos.run(settings, tmp_path, pipe, seed=7, environ={})
    pipe.close()
    message_chaos.check(outcome)
