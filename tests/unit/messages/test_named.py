"""Sending by name, from a program that has no handler's code."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from runonce import client, enqueue, enqueue_many
from runonce.errors import InputError, PermanentError, UnknownJobError
from runonce.hosts.discover import Discovered
from runonce.hosts.manifest import make_manifest, to_text
from runonce.messages.definition import handler
from runonce.messages.named import named
from runonce.testing import Complete, MemorySender, Workbench

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message

BODY = {"invoice_id": "1001", "customer": "19"}


@handler(queue="invoices", key="invoice_id")
def send_invoice(_: Message) -> None:
    """Of a queue."""


@handler(topic="orders", subscription="billing", key="order.id")
def bill(_: Message) -> None:
    """Of a topic."""


@handler(topic="orders", subscription="archive", forward=False)
def archive(_: Message) -> None:
    """Whose messages have no key, and whose subscription does not forward."""


@handler(queue="parcels", key=lambda message: message.json["parcel"] + "!")
def ship(_: Message) -> None:
    """Whose key a function makes."""


ALL: list[Handler] = [send_invoice, bill, archive, ship]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """The manifest of all of them."""
    path = tmp_path / "jobs.json"
    found = Discovered(handlers={one.name: one for one in ALL})
    path.write_text(to_text(make_manifest(found, datetime(2026, 11, 30, tzinfo=UTC))))
    return path


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> MemorySender:
    """What this process sends with."""
    made = MemorySender()
    monkeypatch.setattr(client, "_sender", lambda: made)
    return made


@pytest.mark.parametrize("one", [send_invoice, bill, archive], ids=lambda one: one.name)
def test_a_handler_by_name_is_sent_to_as_by_its_code(
    one: Handler, manifest: Path, sender: MemorySender
) -> None:
    """The same queue or topic, and where it has a key the same id, so that both recognise each other's messages."""
    body = {**BODY, "order": {"id": 7}}
    by_code = enqueue(one, body)
    by_name = enqueue(one.name, body, manifest=manifest)
    first, second = sender.sent
    assert (first.queue, first.body) == (second.queue, second.body)
    if one.key is not None:
        assert by_code == by_name
        assert first.message_id == second.message_id


def test_what_is_sent_by_name_is_handled_once(manifest: Path, sender: MemorySender) -> None:
    """A message sent by name and one by code are one message to the handler."""
    enqueue("send_invoice", BODY, manifest=manifest)
    bench = Workbench()
    body = json.loads(sender.sent[0].body)
    assert bench.deliver(send_invoice, body) == Complete()
    assert bench.deliver(send_invoice, BODY, delivery_count=2) == Complete(duplicate=True)


def test_a_queue_and_a_key_need_no_manifest(sender: MemorySender) -> None:
    """With both given the id is the same as the code's own with that key."""
    by_name = enqueue("send_invoice", BODY, queue="invoices", key="1001")
    by_code = enqueue(send_invoice, BODY, key="1001")
    assert by_name == by_code == "1001"
    assert sender.sent[0] == sender.sent[1]


def test_several_by_name(manifest: Path, sender: MemorySender) -> None:
    """enqueue_many takes names too."""
    ids = enqueue_many("send_invoice", [{"invoice_id": str(n)} for n in range(3)], manifest=manifest)
    assert ids == ["invoices:0", "invoices:1", "invoices:2"]
    assert len(sender.sent) == 3


def test_the_manifest_of_the_current_folder_is_the_default(
    manifest: Path, sender: MemorySender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """infra/jobs.json, as `runonce manifest` writes it."""
    folder = manifest.parent / "infra"
    folder.mkdir()
    manifest.rename(folder / "jobs.json")
    monkeypatch.chdir(manifest.parent)
    enqueue("send_invoice", BODY)
    assert sender.sent[0].queue == "invoices"


def test_a_manifest_that_changes_is_read_anew(manifest: Path, sender: MemorySender) -> None:
    """A long-lived sender sees a new manifest."""
    enqueue("send_invoice", BODY, manifest=manifest)
    manifest.write_text(manifest.read_text().replace('"queue": "invoices"', '"queue": "bills"'))
    enqueue("send_invoice", BODY, manifest=manifest)
    assert [sent.queue for sent in sender.sent] == ["invoices", "bills"]


def test_an_unknown_name_is_one_error_that_lists_the_known(manifest: Path, sender: MemorySender) -> None:
    """Nothing is sent, and the message has the nearest name."""
    with pytest.raises(UnknownJobError, match="no handler 'send_invoce'") as caught:
        enqueue("send_invoce", BODY, manifest=manifest)
    assert "it has: archive, bill, send_invoice, ship. Did you mean 'send_invoice'?" in str(caught.value)
    assert sender.sent == []


def test_a_body_without_its_key_is_refused_where_it_is_sent(manifest: Path, sender: MemorySender) -> None:
    """As with the code."""
    with pytest.raises(PermanentError, match="no field 'invoice_id'"):
        enqueue("send_invoice", {}, manifest=manifest)
    assert sender.sent == []


def test_a_key_that_code_makes_has_to_be_given(manifest: Path, sender: MemorySender) -> None:
    """The function is not here; with key= it is not needed."""
    with pytest.raises(PermanentError, match="its key is made by a function of its code, which is not here"):
        enqueue("ship", {"parcel": "p"}, manifest=manifest)
    assert enqueue("ship", {"parcel": "p"}, key="p!", manifest=manifest) == "p!"
    assert len(sender.sent) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            None,
            "cannot be read .*Say where the file is that `runonce manifest` writes, or give the handler's queue",
        ),
        ("{", "is not a manifest of this version"),
        ("[]", "is not a manifest of this version"),
        ('{"handlers": [{"name": "send_invoice"}]}', "is not a manifest of this version .KeyError: 'queue'"),
    ],
    ids=["missing", "not JSON", "a list", "without a key"],
)
def test_a_file_that_is_no_manifest(tmp_path: Path, content: str | None, message: str) -> None:
    """One error that names the file and the remedy."""
    path = tmp_path / "other.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        named("send_invoice", manifest=path)
    assert "other.json" in str(caught.value)


def test_a_queue_beside_the_code_itself_is_refused(sender: MemorySender) -> None:
    """The code knows its queue."""
    with pytest.raises(InputError, match="queue='other' is for a handler that is given by its name"):
        enqueue(send_invoice, BODY, queue="other")
    assert sender.sent == []


def test_what_is_only_a_name_cannot_be_run() -> None:
    """There is no code to run."""
    made: Any = named("send_invoice", queue="invoices")
    with pytest.raises(NotImplementedError):
        made(None)
