"""Storage queues as the Functions host serves them: how it fetches, renews, settles and puts aside."""

import base64
import json
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from azure.storage.queue import QueueClient

from tests.support.functions_worker import LiveHost, Times
from tests.support.functions_worker.samples import until, write_app

APP = """
    @app.queue_trigger(arg_name="message", queue_name="%(queue)s", connection="AzureWebJobsStorage")
    def work(message: func.QueueMessage) -> None:
        order = json.loads(message.get_body())
        log.info("at work on %%s", order.get("n"))
        if order.get("fail"):
            raise ValueError("no such order")
        time.sleep(order.get("seconds", 0))

    @app.queue_trigger(arg_name="message", queue_name="%(queue)s-raw", connection="AzureWebJobsStorage",
                       data_type=func.DataType.BINARY)
    def raw(message: func.QueueMessage) -> None:
        log.info("raw %%r", message.get_body())
"""
QUEUES = {
    "maxPollingInterval": "00:00:01",
    "visibilityTimeout": "00:00:01",
    "batchSize": 4,
    "newBatchThreshold": 2,
}


class Queues:
    """An app on queues of its own, and those queues seen from outside."""

    def __init__(self, folder: Path, storage: str) -> None:
        self.name = f"double-{uuid.uuid4().hex[:12]}"
        self.storage = storage
        host_json = {"version": "2.0", "extensions": {"queues": QUEUES}}
        self.app = write_app(folder, APP % {"queue": self.name}, json.dumps(host_json))
        for suffix in ("", "-raw"):
            self.client(suffix).create_queue()

    def client(self, suffix: str = "") -> QueueClient:
        return QueueClient.from_connection_string(self.storage, self.name + suffix)

    def send(self, body: Any, suffix: str = "") -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.client(suffix).send_message(base64.b64encode(text).decode())

    def host(self, **times: float) -> LiveHost:
        return LiveHost(self.app, {"AzureWebJobsStorage": self.storage}, times=Times(**times))

    def hidden(self) -> int:
        """Messages there that cannot be received now."""
        client = self.client()
        return client.get_queue_properties().approximate_message_count - len(client.peek_messages(32))


@pytest.fixture
def queues(tmp_path: Path, azurite: str) -> Queues:
    return Queues(tmp_path / "app", azurite)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, azurite: str) -> Iterator[tuple[Queues, LiveHost]]:
    """One host for the tests that do not end it."""
    queues = Queues(tmp_path_factory.mktemp("app"), azurite)
    with queues.host() as host:
        yield queues, host


def test_success_deletes(running: tuple[Queues, LiveHost]) -> None:
    """A message whose function succeeds is gone."""
    queues, host = running
    queues.send({"n": "one"})
    host.console.wait_for("at work on one")
    until(lambda: queues.client().get_queue_properties().approximate_message_count == 0)


def test_failure_shows_again_and_the_fifth_puts_aside(running: tuple[Queues, LiveHost]) -> None:
    """A failed message comes again after visibilityTimeout; after five deliveries a copy lies in the poison queue.

    The copy has an id of its own and expires after seven days.
    """
    queues, host = running
    queues.send({"n": "bad", "fail": True})
    host.console.wait_for("at work on bad", count=5)
    poison = queues.client("-poison")
    [copy] = until(lambda: peeked(poison))
    assert copy.content == base64.b64encode(b'{"n": "bad", "fail": true}').decode()
    assert (copy.expires_on - copy.inserted_on).days == 7
    executions = [done for done in host.console.of("work") if done.success is False]
    gaps = [later.started - earlier.ended for earlier, later in pairwise(executions)]
    assert min(gaps) > 0.9
    assert copy.id not in {done.reason.rpartition(" ")[2] for done in executions}
    assert queues.client().get_queue_properties().approximate_message_count == 0


def peeked(client: QueueClient) -> list[Any]:
    try:
        return client.peek_messages(32)
    except Exception:  # noqa: BLE001 - it does not exist yet
        return []


def test_what_is_not_base64_is_put_aside_unseen(running: tuple[Queues, LiveHost]) -> None:
    """With messageEncoding base64 a plain text goes to poison at first sight, and no function is called."""
    queues, host = running
    queues.client("-raw").send_message('{"n": "plain"}')
    [copy] = until(lambda: peeked(queues.client("-raw-poison")))
    assert copy.content == '{"n": "plain"}'
    assert not any("plain" in line for line in host.console.lines)


def test_wrapped_base64_is_base64(running: tuple[Queues, LiveHost]) -> None:
    """White space within Base64 does not count."""
    queues, host = running
    text = base64.b64encode(b"wrapped").decode()
    queues.client("-raw").send_message(f"{text[:4]}\n {text[4:]}\n")
    host.console.wait_for("raw b'wrapped'")


def test_what_is_not_utf8_fails_five_times(running: tuple[Queues, LiveHost]) -> None:
    """Bytes that are no UTF-8 fail each binding of a text trigger and end in poison; BINARY gets them."""
    queues, host = running
    queues.send(b"\xff\xfe", "-raw")
    host.console.wait_for(r"raw b'\xff\xfe'")
    before = len(host.console.of("work"))
    queues.send(b"\xff\xfe")
    wanted = base64.b64encode(b"\xff\xfe").decode()
    until(lambda: wanted in [copy.content for copy in peeked(queues.client("-poison"))])
    failed = host.console.of("work")[before:]
    assert [done.success for done in failed] == [False] * 5
    assert all("Exception binding parameter 'message'" in done.error for done in failed)


def test_messages_that_come_one_at_a_time_run_one_more_than_the_threshold(queues: Queues) -> None:
    """With batchSize 4 and newBatchThreshold 2 three run at once when each comes alone; a fetch of four makes six."""
    with queues.host() as host:
        for n in range(4):
            queues.send({"n": n, "seconds": 4})
            if n < 3:
                host.console.wait_for(f"at work on {n}")
        host.console.wait_for("at work on 3", timeout=15)
        executions = host.console.of("work")
        assert executions[3].started >= min(done.ended or 1e12 for done in executions[:3])


def test_a_receive_hides_for_ten_minutes_and_is_renewed(queues: Queues) -> None:
    """While a message is handled its hiding is renewed at half time, so a long handler runs once."""
    with queues.host(hidden=2) as host:
        queues.send({"n": "long", "seconds": 5})
        host.console.wait_for("at work on long")
        until(lambda: host.console.of("work")[0].success, 15)
        assert len(host.console.of("work")) == 1
    assert queues.client().get_queue_properties().approximate_message_count == 0


def test_a_stopping_host_fetches_no_more_and_leaves_what_it_has_hidden(queues: Queues) -> None:
    """On SIGTERM what ends in time is deleted; the rest stays hidden for the ten minutes of its receive."""
    with queues.host(shutdown=2) as host:
        queues.send({"n": "short", "seconds": 1})
        queues.send({"n": "long", "seconds": 60})
        host.console.wait_for("at work on short")
        host.console.wait_for("at work on long")
        host.terminate()
        queues.send({"n": "late"})
        assert host.wait(10) == 0
        assert not any("at work on late" in line for line in host.console.lines)
    client = queues.client()
    assert [json.loads(base64.b64decode(m.content))["n"] for m in client.peek_messages(32)] == ["late"]
    assert queues.hidden() == 1


def test_a_killed_workers_messages_come_again_and_a_new_worker_takes_them(queues: Queues) -> None:
    """After kill -9 of the worker its invocations fail at once, and a new worker is there in 0.3 s."""
    with queues.host() as host:
        queues.send({"n": "first", "seconds": 3})
        host.console.wait_for("at work on first")
        killed, old = time.time(), host.worker
        old.kill()
        until(lambda: host.console.of("work")[0].success is False, 3)
        assert host.console.of("work")[0].ended - killed < 1
        assert "exited with code -9" in host.console.of("work")[0].error
        host.console.wait_for("at work on first", count=2)
        assert host.worker.pid != old.pid
        assert host.console.of("work")[1].started - host.console.of("work")[0].ended > 0.9
