"""docs/local.md says where the local host differs from the Functions host; each row is held against both here."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue import QueueClient

from runonce.messages.effects import read_effects
from runonce.runs.presence import CHECK_IN, MISSED
from runonce.stores.azure.stores import azure_stores
from runonce.testing.proxy import StorageProxy
from tests.support.functions_app import ROOT, environment, make_app
from tests.support.functions_worker import LiveHost, NoResponseError, Times
from tests.support.functions_worker.samples import until
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from runonce.settings import Settings

HANDLER = """
import logging
import time

from runonce import Message, handler

logging.getLogger("mine").warning("said while it is imported")

@handler(queue="{queue}", retries=0)
def note(message: Message) -> None:
    if message.body == b'"slow"':
        message.log.warning("waiting")
        time.sleep(600)
    message.commit({{"seen": {{"body": message.body.decode("latin-1")}}}})
"""


class Bench:
    """One handler, its queue, and both hosts."""

    def __init__(self, folder: Path, azurite: str) -> None:
        self.proxy = StorageProxy(azurite)
        self.settings: Settings = fresh_settings(self.proxy.connection_string)
        self.stores = azure_stores(fresh_settings(azurite))
        self.queue = f"differs-{self.settings.namespace}"
        self.app = make_app(folder / "app", {"note.py": HANDLER.format(queue=self.queue)})
        self.client = QueueClient.from_connection_string(azurite, self.queue)
        self.client.create_queue()
        self.poison = QueueClient.from_connection_string(azurite, f"{self.queue}-poison")

    def send(self, text: str) -> None:
        """Send a text as it is."""
        self.client.send_message(text)

    def there(self, **times: float) -> LiveHost:
        """The Functions host."""
        return LiveHost(self.app, environment(self.settings), times=Times(**times))

    def here(self, *command: str, **more: str) -> subprocess.Popen[str]:
        """The local host."""
        env = {**os.environ, **environment(self.settings), **more, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-m", "runonce", *command],
            cwd=self.app,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def work_here(self) -> str:
        """Handle one message here; what was shown."""
        return self.here("work", "note", "--max-messages", "1").communicate(timeout=60)[0]

    def seen(self) -> list[Any]:
        """The bodies that had an effect."""
        rows = read_effects(self.stores.claims, self.settings.namespace, "note")
        return [row["body"] for row in rows]

    def waiting_in_poison(self) -> list[str]:
        """What was put aside."""
        try:
            return [str(one.content) for one in self.poison.peek_messages(5)]
        except ResourceNotFoundError:
            return []


@pytest.fixture
def bench(tmp_path: Path, azurite: str) -> Iterator[Bench]:
    made = Bench(tmp_path, azurite)
    yield made
    made.proxy.close()


def no_base64(bench: Bench) -> None:
    bench.send("plain text")
    bench.work_here()
    assert bench.seen() == ["plain text"]
    bench.send("other text")
    with bench.there() as host:
        until(bench.waiting_in_poison, 30)
        assert host.console.of("note") == []
    assert bench.waiting_in_poison() == ["other text"]


def by_chance_base64(bench: Bench) -> None:
    bench.send("1234")
    bench.work_here()
    assert bench.seen() == ["1234"]
    bench.send("1234")
    with bench.there():
        until(lambda: len(bench.seen()) == 2, 30)
    assert sorted(bench.seen()) == sorted(["1234", base64.b64decode("1234").decode("latin-1")])


def said_at_import(bench: Bench) -> None:
    bench.send(base64.b64encode(b"1").decode())
    assert "said while it is imported" in bench.work_here()
    bench.send(base64.b64encode(b"2").decode())
    with bench.there() as host:
        until(lambda: len(bench.seen()) == 2, 30)
        assert not any("said while it is imported" in line for line in host.console.lines)


def killed(bench: Bench) -> None:
    slow, lease = base64.b64encode(b'"slow"').decode(), 3.0
    bench.send(slow)
    host = bench.here("work", "note", RUNONCE_CLAIM_LEASE=f"{lease:g}")
    assert host.stdout is not None
    assert any("waiting" in line for line in host.stdout)
    host.kill()
    host.communicate()
    until(lambda: bench.client.receive_message(visibility_timeout=1), lease + 5)
    bench.client.clear_messages()
    bench.send(slow)
    with bench.there() as functions:
        functions.console.wait_for("waiting")
    with bench.there() as functions, pytest.raises(NoResponseError):  # long enough to miss the one before
        functions.console.wait_for("waiting", timeout=(MISSED + timedelta(seconds=CHECK_IN)).total_seconds())
    assert Times().hidden == 600


def storage_away(bench: Bench) -> None:
    here = bench.here("serve")
    assert here.stdout is not None
    assert any("Ctrl-C" in line for line in here.stdout)
    with bench.there(storage_patience=3.0, shutdown=1.0) as there:
        bench.proxy.refuse()
        assert there.wait(60) == 0
    assert here.poll() is None
    bench.proxy.reset()
    bench.send(base64.b64encode(b'"later"').decode())
    until(lambda: bench.seen() == ['"later"'], 60)
    here.terminate()
    here.communicate(timeout=60)
    assert Times().storage_patience == 25


ROWS: dict[str, Callable[[Bench], None]] = {
    "a Storage queue's text that is no Base64": no_base64,
    "a Storage queue's text that is Base64, but not of JSON, such as `1234`": by_chance_base64,
    "a line logged while a job file is imported": said_at_import,
    "a Storage queue's message whose host is killed within two seconds of it": killed,
    "storage does not answer": storage_away,
}


def base64_of(body: bytes) -> str:
    return base64.b64encode(body).decode()


ALIKE = {
    "JSON": base64_of(b'{"id": 1}'),
    "JSON with a byte order mark": base64_of(b'\xef\xbb\xbf{"id": 2}'),
    "a byte order mark inside": base64_of('{"id": "3\ufeff"}'.encode()),
    "spaces that do not break": base64_of('{"id":\t"4\u00a0\u202f\u00ad"}'.encode()),
    "a joined emoji": base64_of('{"id": "5 \U0001f469\u200d\U0001f52c"}'.encode()),
    "escapes": base64_of(b'{"id": "6 \\ud83d\\ude00 \\u0000"}'),
    "a list": base64_of(b"[7]"),
    "a number": base64_of(b"8"),
    "a text in quotes": base64_of(b'"9"'),
    "wrapped Base64": base64.encodebytes(b'{"id": "10", "text": "' + b"x" * 200 + b'"}').decode(),
    "blanks around Base64": " " + base64_of(b'{"id": 11}') + "\r\n",
    "the host's own fields": base64_of(
        b'{"id": 12, "dequeueCount": "x", "PopReceipt": 1, "insertionTime": {}}'
    ),
    "nothing of the toolkit's, though it looks so": base64_of(b'{"runonce": 1, "id": 13}'),
}
"""Texts of a Storage queue that both hosts hand over as the same bytes."""
OTHERWISE = {
    "UTF-16": '{"id": 1}'.encode("utf-16"),
    "Latin-1": '{"id": "Z\u00fcrich"}'.encode("latin-1"),
    "binary": bytes(range(256)),
    "a text without quotes": b"plain text",
    "half of JSON": b'{"id": 1',
}
"""Bytes that are not JSON, whose Base64 is one of the rows."""


@pytest.mark.slow
def test_whatever_is_json_is_the_same_on_both_hosts(bench: Bench) -> None:
    """A handler gets the same bytes, however they are encoded, whatever signs and fields are in them."""
    for text in ALIKE.values():
        bench.send(text)
    bench.here("work", "note", "--max-messages", str(len(ALIKE))).communicate(timeout=60)
    here = sorted(bench.seen())
    assert here == sorted(base64.b64decode(text).decode("latin-1") for text in ALIKE.values())
    for text in ALIKE.values():
        bench.send(text)
    with bench.there():
        until(lambda: len(bench.seen()) == 2 * len(here), 60)
    assert sorted(bench.seen()) == sorted(2 * here)
    assert bench.waiting_in_poison() == []


@pytest.mark.slow
def test_base64_of_what_is_no_json_is_the_text_here_and_the_bytes_there(bench: Bench) -> None:
    """As the page's row says, for every kind of bytes; `queue_encoding="base64"` makes it the bytes here too."""
    sent = {name: base64_of(body) for name, body in OTHERWISE.items()}
    for text in sent.values():
        bench.send(text)
    bench.here("work", "note", "--max-messages", str(len(sent))).communicate(timeout=60)
    assert sorted(bench.seen()) == sorted(sent.values())
    for text in sent.values():
        bench.send(text)
    with bench.there():
        until(lambda: len(bench.seen()) == 2 * len(sent), 60)
    bodies = [body.decode("latin-1") for body in OTHERWISE.values()]
    assert sorted(bench.seen()) == sorted([*sent.values(), *bodies])
    source = HANDLER.format(queue=bench.queue).replace("retries=0", 'retries=0, queue_encoding="base64"')
    (bench.app / "jobs" / "note.py").write_text(source)
    for text in sent.values():
        bench.send(text)
    bench.here("work", "note", "--max-messages", str(len(sent))).communicate(timeout=60)
    assert sorted(bench.seen()) == sorted([*sent.values(), *bodies, *bodies])


def documented() -> list[str]:
    """The first column of the page's table."""
    page = (ROOT / "docs" / "local.md").read_text(encoding="utf-8")
    table = page.partition("### Where the local host differs")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    return [row.split("|")[1].strip() for row in rows[1:]]


def test_each_difference_told_is_tried() -> None:
    """The page has the rows that are tried here, and no others."""
    assert documented() == list(ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_a_difference_is_as_the_page_says(row: str, bench: Bench) -> None:
    """Both hosts do with the same message, or the same trouble, what their columns say."""
    ROWS[row](bench)
