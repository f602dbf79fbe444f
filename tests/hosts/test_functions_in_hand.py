"""Messages of a worker that was killed without a sign come again with the end of their claims, not in ten minutes."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue import QueueClient

from runonce.hosts.functions.in_hand import FIRST, LAST
from runonce.messages.effects import read_effects
from runonce.runs.presence import partition
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import LiveHost, Times
from tests.support.functions_worker.samples import until

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

HANDLER = """
import time

from runonce import Message, handler

@handler(queue="{queue}", on_abandoned="{on_abandoned}")
def take(message: Message) -> None:
    message.log.info("waiting, attempt %d", message.attempt)
    while message.attempt == 1:
        time.sleep({asleep})
    message.commit({{"done": {{"attempt": message.attempt}}}})
"""


class Bench:
    """An app whose handler ends on its second attempt only."""

    def __init__(self, folder: Path, settings: Settings, *, on_abandoned: str = "rerun") -> None:
        storage, self.queue = str(settings.storage.connection_string), f"hand-{settings.namespace}"
        source = HANDLER.format(queue=self.queue, on_abandoned=on_abandoned, asleep=0.05)
        self.app = make_app(folder / "app", {"take.py": source})
        instance = {"WEBSITE_SITE_NAME": "shop", "WEBSITE_INSTANCE_ID": "0123456789abcdef"}  # as on Azure
        self.env = environment(settings) | instance | {"RUNONCE_CLAIM_LEASE": "3"}
        self.client, self.poison = (
            QueueClient.from_connection_string(storage, self.queue + end) for end in ("", "-poison")
        )
        self.client.create_queue()

    def send(self) -> None:
        self.client.send_message(base64.b64encode(b"{}").decode())

    def host(self, **times: float) -> LiveHost:
        return LiveHost(self.app, self.env, times=Times(**times))

    def put_aside(self) -> int:
        try:
            return len(self.poison.peek_messages(32))
        except ResourceNotFoundError:
            return 0


def done(settings: Settings, azure: Stores) -> list[int]:
    return [int(str(row["attempt"])) for row in read_effects(azure.claims, settings.namespace, "take")]


def lines(settings: Settings, azure: Stores) -> list[str]:
    """What is written down of messages in hand."""
    rows = azure.runs.scan(partition(settings.namespace), FIRST, LAST)
    return [line for row in rows for line in str(row.values["messages"]).splitlines()]


@pytest.mark.slow
def test_a_restart_that_tells_the_worker_nothing(tmp_path: Path, settings: Settings, azure: Stores) -> None:
    """The new worker misses the old one, and shows its messages again: each is handled once, within half a minute."""
    bench = Bench(tmp_path, settings)
    with bench.host() as host:
        for _ in range(3):
            bench.send()
        host.console.wait_for("waiting, attempt 1", count=3)
        until(lambda: len(lines(settings, azure)) == 3)
        killed = time.monotonic()
        host.restart()
        until(lambda: len(done(settings, azure)) == 3, 40)
        assert time.monotonic() - killed < 35
        until(lambda: bench.client.get_queue_properties().approximate_message_count == 0)
    assert done(settings, azure) == [2, 2, 2]


@pytest.mark.slow
def test_a_host_that_vanishes(tmp_path: Path, settings: Settings, azure: Stores) -> None:
    """Another host shows its messages again; one that had ended is neither repeated nor missed."""
    bench = Bench(tmp_path, settings)
    with bench.host() as host:
        bench.send()
        host.console.wait_for("waiting, attempt 1")
        until(lambda: len(lines(settings, azure)) == 1)
    with bench.host() as other:
        until(lambda: done(settings, azure) == [2], 40)
        until(lambda: bench.client.get_queue_properties().approximate_message_count == 0)
        assert not other.console.running


@pytest.mark.slow
def test_what_is_held_at_a_stop_is_put_aside_at_once(tmp_path: Path, settings: Settings) -> None:
    """The message of a handler with "hold" that did not end comes again after a second, and is put aside as unknown."""
    bench = Bench(tmp_path, settings, on_abandoned="hold")
    with bench.host() as host:
        bench.send()
        host.console.wait_for("waiting, attempt 1")
        host.terminate()
        assert host.wait(12) == 0
    with bench.host() as other:
        until(bench.put_aside, 20)
        until(lambda: not other.console.running)
        assert [one.success for one in other.console.of("take")] == [False]
    assert bench.put_aside() == 1
    assert bench.client.get_queue_properties().approximate_message_count == 0


EARLY = """
import runonce.hosts.functions.in_hand as in_hand

in_hand.RENEW = 2.0
"""


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
def test_a_message_that_is_in_hand_for_long(
    tmp_path: Path, settings: Settings, azure: Stores, *, ends: bool
) -> None:
    """The worker hides it anew before the host does: it is deleted when it is done, and shown when the worker dies."""
    bench = Bench(tmp_path, settings)
    (bench.app / "jobs" / "early.py").write_text(EARLY)
    if ends:
        source = (bench.app / "jobs" / "take.py").read_text()
        source = source.replace("while message.attempt == 1:\n        time.sleep(0.05)", "time.sleep(9)")
        (bench.app / "jobs" / "take.py").write_text(source)
    with bench.host(hidden=12.0) as host:  # it hides anew after six
        bench.send()
        host.console.wait_for("waiting, attempt 1")
        if ends:
            until(lambda: done(settings, azure) == [1])
        else:
            first = until(lambda: lines(settings, azure))
            until(lambda: lines(settings, azure) not in ([], first))
            host.restart()
            until(lambda: done(settings, azure) == [2], 40)
        until(lambda: bench.client.get_queue_properties().approximate_message_count == 0)
        until(lambda: not host.console.running)
        assert len(done(settings, azure)) == 1
