from __future__ import annotations

import json
import types
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from support.command_line import CommandLine

from runonce.cli import dead_letters
from runonce.errors import TransportError
from runonce.messages.deliver import Deliverer
from runonce.messages.rows import SHARDS, partition
from runonce.stores.protocols import Delete
from runonce.transports.settlement import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runonce.messages.definition import Handler
    from runonce.transports.protocols import Outgoing

HANDLERS = """
    from runonce import Message, PermanentError, handler

    @handler(queue="invoices", key="id", retries=0)
    def send_invoice(message: Message) -> None:
        if message.json.get("bad"):
            raise PermanentError("no such customer")

    @handler(topic="orders", subscription="billing", key="id")
    def bill(message: Message) -> None:
        pass
"""


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    made.file("handlers.py", HANDLERS)
    return made


def work_off(cli: CommandLine) -> Handler:
    """Handle what waits for send_invoice, as a consumer would."""
    found = cli.context().handler("send_invoice")
    inbox = cli.transport.inbox(found)
    deliverer = Deliverer(
        cli.stores, cli.transport.sender(), cli.context().runtime.settings, cli.clock, host="replica-1"
    )
    while received := inbox.receive(1, 0.0):
        inbox.settle(received[0], deliverer.deliver(found, received[0].delivery))
    return found


def put_aside(cli: CommandLine, *bodies: str) -> None:
    """Have these dead-lettered."""
    for body in bodies:
        assert cli("enqueue", "send_invoice", "--body", body).exit_code == 0
    work_off(cli)


def test_list_shows_handlers(cli: CommandLine) -> None:
    """Handlers stand below the jobs, with where their messages come from and what their key is."""
    shown = cli("list").stdout
    assert "orders/billing" in shown
    bill, send = cli.json("list")["handlers"]
    assert (bill["topic"], bill["subscription"], bill["queue"]) == ("orders", "billing", "orders.billing")
    assert (send["name"], send["queue"], send["key"], send["retries"]) == (
        "send_invoice",
        "invoices",
        "id",
        0,
    )


# -- enqueue -----------------------------------------------------------------------------------------------------


def test_enqueue_sends_a_body_under_the_id_of_its_key(cli: CommandLine) -> None:
    """The message is in the handler's queue as it was typed, and its id comes from the key."""
    result = cli("enqueue", "send_invoice", "--body", '{"id": 17}')
    assert (result.exit_code, result.stdout) == (
        0,
        "send_invoice: message invoices:17 sent to local-invoices\n",
    )
    assert cli.transport.bodies("invoices") == [b'{"id": 17}']


def test_enqueue_sends_a_file_and_standard_input(cli: CommandLine, tmp_path: Path) -> None:
    """A whole file is one body, byte for byte; so is what comes through a pipe."""
    file = tmp_path / "body.json"
    file.write_bytes('{"id": "ä"}\n'.encode())
    assert cli("enqueue", "send_invoice", "--file", str(file)).exit_code == 0
    assert cli("enqueue", "send_invoice", "-f", "-", stdin=b'{"id": 2}').exit_code == 0
    assert cli.transport.bodies("invoices") == ['{"id": "ä"}\n'.encode(), b'{"id": 2}']


def test_enqueue_sends_each_line(cli: CommandLine) -> None:
    """With --lines each line that is not empty is a message."""
    stdin = b'\xef\xbb\xbf{"id": 1}\r\n\n  {"id": 2}\n{"id": 3}'
    result = cli("enqueue", "send_invoice", "--file", "-", "--lines", stdin=stdin)
    assert result.stdout == "send_invoice: 3 messages sent to local-invoices\n"
    assert cli.transport.bodies("invoices") == [b'{"id": 1}', b'{"id": 2}', b'{"id": 3}']
    nothing = cli("enqueue", "send_invoice", "--file", "-", "--lines", stdin=b"\n")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    empty = cli("enqueue", "send_invoice", "--file", "-", "--lines", "--json", stdin=b"\n")
    assert json.loads(empty.stdout)["sent"] == []
    assert "nothing was sent" in nothing.stderr


def test_enqueue_with_an_id_and_a_time(cli: CommandLine) -> None:
    """--key is the message's id, --at when it shall be there; a time without an offset is in UTC."""
    result = cli("enqueue", "send_invoice", "--body", '{"id": 1}', "--key", "k-1", "--at", "2026-11-29T13:00")
    assert "message k-1 sent" in result.stdout
    assert "read as the time in UTC" in result.stderr
    [held] = cli.transport.queues["invoices"]
    assert held.visible_at == 3600.0
    assert cli.clock.now() == datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("args", "stdin", "code", "said"),
    [
        (["--body", "{id: 1}"], None, 5, "--body: this is not valid JSON"),
        (["--body", '{"id": NaN}'], None, 5, "NaN is not a JSON number"),
        (["--body", '{"ID": 1}'], None, 5, "no field 'id'"),
        (
            ["--file", "-", "--lines"],
            b'{"id": 1}\n{"id": \n',
            5,
            "standard input, line 2: this is not valid JSON",
        ),
        (["--file", "-", "--lines"], b'{"id": 1}\n{"no": 1}\n', 5, "no field 'id'"),
        (["--file", "/no/such/file"], None, 5, "/no/such/file cannot be read"),
        ([], None, 2, "give the body once"),
        (["--body", "1", "--file", "-"], b"1", 2, "give the body once"),
        (
            ["--file", "-", "--lines", "--key", "a"],
            b'{"id": 1}\n{"id": 2}',
            2,
            "2 messages cannot have one id",
        ),
        (["--body", '{"id": 1}', "--at", "tomorrow"], None, 2, "is not an ISO 8601 instant"),
    ],
    ids=["json", "nan", "key", "line", "keyless-line", "file", "none", "both", "one-id", "time"],
)
def test_what_cannot_be_sent_is_said_and_nothing_is_sent(
    cli: CommandLine, args: list[str], stdin: bytes | None, code: int, said: str
) -> None:
    """A wrong body, line, key or time is named, before anything is sent."""
    result = cli("enqueue", "send_invoice", *args, stdin=stdin, columns=200)
    assert result.exit_code == code
    assert said in result.stderr
    assert cli.transport.bodies("invoices") == []


def test_enqueue_to_a_handler_whose_code_is_elsewhere(cli: CommandLine, tmp_path: Path) -> None:
    """--manifest has its queue and key, --queue says the queue; an unknown name is 5 and lists the known."""
    path = tmp_path / "jobs.json"
    entry = {"name": "remote", "queue": "far", "topic": "", "subscription": "", "forward": False, "key": "id"}
    path.write_text(json.dumps({"handlers": [entry]}))
    sent = cli("enqueue", "remote", "--body", '{"id": 7}', "--manifest", str(path))
    assert (sent.exit_code, sent.stdout) == (0, "remote: message far:7 sent to local-far\n")
    sent = cli("enqueue", "remote", "--body", "{}", "--queue", "far", "--key", "k-1")
    assert (sent.exit_code, sent.stdout) == (0, "remote: message k-1 sent to local-far\n")
    unknown = cli("enqueue", "remot", "--body", "{}", "--manifest", str(path))
    assert unknown.exit_code == 5
    assert "Did you mean 'remote'?" in unknown.stderr
    both = cli("enqueue", "remote", "--body", "{}", "--manifest", str(path), "--queue", "far")
    assert both.exit_code == 2


def test_enqueue_to_what_there_is_not(cli: CommandLine) -> None:
    """A handler nobody wrote is 5 with the nearest name; a topic on Storage queues is 5 with the remedy."""
    unknown = cli("enqueue", "send_invoce", "--body", "{}")
    assert (unknown.exit_code, "Did you mean 'send_invoice'?" in unknown.stderr) == (5, True)
    topic = cli("enqueue", "bill", "--body", '{"id": 1}')
    assert (topic.exit_code, "set RUNONCE_SERVICEBUS" in topic.stderr) == (5, True)


def test_a_broker_out_of_reach_is_6(cli: CommandLine) -> None:
    """The broker's own words, and the exit code of what is out of reach."""
    cli.transport.fail["send"] = [TransportError("sending to invoices: connection refused")]
    result = cli("enqueue", "send_invoice", "--body", '{"id": 1}')
    assert (result.exit_code, result.stderr) == (6, "error: sending to invoices: connection refused\n")


# -- dead-letters ------------------------------------------------------------------------------------------------


def test_list_shows_why_and_no_body(cli: CommandLine) -> None:
    """Message, reason and attempts stand in the table; what is in the body does not."""
    put_aside(cli, '{"id": 17, "bad": true, "secret": "hunter2"}')
    shown = cli("dead-letters", "list", "send_invoice").stdout
    assert "invoices:17" in shown
    assert "no such customer" in shown
    assert "hunter2" not in shown
    document = cli.json("dead-letters", "list", "send_invoice")
    [one] = document["dead_letters"]
    assert (document["handler"], document["entity"]) == ("send_invoice", "invoices")
    assert (one["id"], one["key"], one["reason"], one["state"]) == ("invoices:17", "17", "Failed", "failed")
    assert (one["attempts"], one["host"], one["bytes"]) == (1, "replica-1", 44)
    assert "hunter2" not in json.dumps(document)


def test_list_of_none(cli: CommandLine) -> None:
    """Without dead letters it says so, and ends with 0."""
    result = cli("dead-letters", "list", "send_invoice")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "send_invoice has no dead letters" in result.stderr
    assert cli.json("dead-letters", "list", "send_invoice")["dead_letters"] == []


def test_show_has_the_traceback_and_the_body_on_request(cli: CommandLine) -> None:
    """All that is known is shown; the body only with --body."""
    put_aside(cli, '{"id": 17, "bad": true, "secret": "hunter2"}')
    plain = cli("dead-letters", "show", "send_invoice", "--id", "invoices:17", columns=200).stdout
    assert "PermanentError" in plain
    assert "hunter2" not in plain
    assert "hunter2" in cli("dead-letters", "show", "send_invoice", "--id", "invoices:17", "--body").stdout
    shown = cli.json("dead-letters", "show", "send_invoice", "--id", "invoices:17", "--body")
    assert json.loads(shown["body"])["secret"] == "hunter2"
    missing = cli("dead-letters", "show", "send_invoice", "--id", "nope")
    assert (missing.exit_code, "no dead letter 'nope'" in missing.stderr) == (5, True)


def test_two_dead_letters_of_one_key_are_told_apart(cli: CommandLine) -> None:
    """Sent under one key with two bodies, each is shown by the id the broker knows it by."""
    put_aside(cli, '{"id": 17, "bad": true}', '{"id": 17, "bad": true, "n": 2}')
    both = cli.json("dead-letters", "list", "send_invoice")["dead_letters"]
    assert [one["id"] for one in both] == ["invoices:17"] * 2
    refused = cli("dead-letters", "show", "send_invoice", "--id", "invoices:17")
    assert (refused.exit_code, "2 dead letters called 'invoices:17'" in refused.stderr) == (5, True)
    second = cli.json("dead-letters", "show", "send_invoice", "--id", both[1]["message_id"], "--body")
    assert json.loads(second["body"])["n"] == 2


def test_a_message_without_a_key_is_listed_too(cli: CommandLine) -> None:
    """One that nobody could claim has its reason, and no claim."""
    found = cli.context().handler("send_invoice")
    inbox = cli.transport.inbox(found)
    cli("enqueue", "send_invoice", "--body", '{"id": 1}')
    [received] = inbox.receive(1, 0.0)
    object.__setattr__(received.delivery, "body", b"\xff not JSON")
    inbox.settle(received, DeadLetter("NotText", "its body is not UTF-8"))
    [one] = cli.json("dead-letters", "list", "send_invoice")["dead_letters"]
    assert (one["reason"], one["key"], one["state"]) == ("NotText", "", None)
    shown = cli.json("dead-letters", "show", "send_invoice", "--id", one["id"], "--body")
    assert shown["body"] == "\\xff not JSON"


def test_replay_sends_through_what_was_corrected(cli: CommandLine) -> None:
    """Replayed messages are handled once more as a new generation, and are gone from the dead letters."""
    put_aside(cli, '{"id": 1, "bad": true}', '{"id": 2, "bad": true}')
    cli.file("handlers.py", HANDLERS.replace("raise PermanentError", "print"))
    result = cli("dead-letters", "replay", "send_invoice", "--id", "invoices:1")
    assert (result.exit_code, result.stdout) == (0, "send_invoice: 1 dead letter replayed\n")
    assert cli.transport.bodies("invoices/dead") == [b'{"id": 2, "bad": true}']
    assert cli.json("dead-letters", "replay", "send_invoice", "--all")["replayed"] == ["invoices:2"]
    work_off(cli)
    assert cli.transport.bodies("invoices") == []
    assert cli.transport.bodies("invoices/dead") == []


def test_a_replay_that_fails_again_is_not_replayed_for_ever(cli: CommandLine) -> None:
    """While --all goes on, what it sent may be put aside again: that one is left for next time."""
    put_aside(cli, '{"id": 1, "bad": true}')
    sends = cli.transport.note

    def note(event: str, method: str) -> None:
        sends(event, method)
        if event.startswith("remove"):
            work_off(cli)  # a consumer is quick to handle the copy

    cli.transport.note = note  # type: ignore[method-assign]
    assert cli.json("dead-letters", "replay", "send_invoice", "--all")["replayed"] == ["invoices:1"]
    [again] = cli.json("dead-letters", "list", "send_invoice")["dead_letters"]
    assert (again["id"], len(again["replays"]), again["attempts"]) == ("invoices:1", 1, 2)


def test_a_replay_of_what_took_effect_is_refused(cli: CommandLine) -> None:
    """A dead letter whose claim is done stays where it is, with the reason; the command ends with 4."""
    cli("enqueue", "send_invoice", "--body", '{"id": 1}')
    cli("enqueue", "send_invoice", "--body", '{"id": 1}')
    found = cli.context().handler("send_invoice")
    inbox = cli.transport.inbox(found)
    [received] = inbox.receive(1, 0.0)
    inbox.settle(received, DeadLetter("DoneButNotRecorded", "as if"))
    work_off(cli)
    result = cli("dead-letters", "replay", "send_invoice", "--all")
    assert result.exit_code == 4
    assert "is done since" in result.stderr
    assert cli.transport.bodies("invoices/dead") == [b'{"id": 1}']
    assert cli("dead-letters", "purge", "send_invoice", "--all", "--yes").exit_code == 0
    assert cli.transport.bodies("invoices/dead") == []


def test_all_leaves_out_what_may_have_happened(cli: CommandLine) -> None:
    """--all replays no message whose effect may have happened, and says how many; named by its id each is replayed."""
    put_aside(cli, '{"id": 1, "bad": true}')
    cli("enqueue", "send_invoice", "--body", '{"id": 2}')
    found = cli.context().handler("send_invoice")
    inbox = cli.transport.inbox(found)
    [received] = inbox.receive(1, 0.0)
    inbox.settle(received, DeadLetter("Unknown", "its host died"))
    made = cli.json("dead-letters", "replay", "send_invoice", "--all")
    assert (made["replayed"], made["left_out"], made["exit_code"]) == (["invoices:1"], ["invoices:2"], 0)
    again = cli("dead-letters", "replay", "send_invoice", "--all")
    assert (again.exit_code, "1 left out, whose effect may have happened" in again.stderr) == (3, True)
    named = ("dead-letters", "replay", "send_invoice", "--id", "invoices:2")
    assert cli(*named).exit_code == 4  # its claim is not there
    assert cli(*named, "--from-scratch").exit_code == 0
    assert cli.transport.bodies("invoices/dead") == []


def test_letters_held_for_too_long_are_back_by_themselves(cli: CommandLine) -> None:
    """Those before the one that is wanted are held until the end; a lock that has ended by then is no trouble."""
    put_aside(cli, *(f'{{"id": {n}, "bad": true}}' for n in range(5)))
    cli.transport.fail["put_back"] = [TransportError("MessageLockLostError")] * 4
    made = cli.json("dead-letters", "replay", "send_invoice", "--id", "invoices:4")
    assert (made["replayed"], made["exit_code"]) == (["invoices:4"], 0)


def test_a_dead_letter_that_cannot_be_sent_keeps_no_other_back(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named and stays where it was, also for --all; the others are replayed, and the exit code says so."""
    put_aside(cli, *(f'{{"id": {n}, "bad": true}}' for n in range(3)))
    sender = cli.context().runtime.sender
    send = sender.send

    def refuses(entity: str, messages: Sequence[Outgoing]) -> None:
        if b'"id": 1' in messages[0].body:
            raise TransportError("it takes 65712 bytes in Base64, over 65536")
        send(entity, messages)

    monkeypatch.setattr(type(sender), "send", lambda _, entity, messages: refuses(entity, messages))
    result = cli("dead-letters", "replay", "send_invoice", "--all")
    assert (result.exit_code, result.stdout) == (4, "send_invoice: 2 dead letters replayed\n")
    assert "over 65536" in result.stderr
    assert cli.transport.bodies("invoices/dead") == [b'{"id": 1, "bad": true}']


@pytest.mark.slow
def test_the_most_that_a_storage_queue_shows_is_not_taken_for_all(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond the 32 that a queue shows are told by their claims, and without one counted; all are found."""
    put_aside(cli, *(f'{{"id": {n}, "bad": true}}' for n in range(40)))
    assert "there may be more" not in cli("dead-letters", "list", "send_invoice", "-n", "100").stderr
    letters = type(cli.transport.dead_letters(cli.context().handler("send_invoice")))
    peek = letters.peek
    monkeypatch.setattr(letters, "peek", lambda self, limit: peek(self, min(limit, 32)))
    result = cli("dead-letters", "list", "send_invoice", "-n", "100")
    assert "the queue shows only the oldest 32 of its 40; 8 are told by their claims" in result.stderr
    listed = cli.json("dead-letters", "list", "send_invoice", "-n", "100")
    assert listed["count"] == 40
    assert {one["key"] for one in listed["dead_letters"]} == {str(n) for n in range(40)}
    told = [one["told_by"] for one in listed["dead_letters"]]
    assert (told.count("queue"), told.count("claim")) == (32, 8)
    last = next(one for one in listed["dead_letters"] if one["told_by"] == "claim")
    shown = cli.json("dead-letters", "show", "send_invoice", "--id", last["id"], "--body")
    assert (shown["key"], shown["told_by"]) == (last["key"], "queue")
    assert f'"id": {last["key"]},' in shown["body"]
    group, unserved = cli.json("dead-letters", "list")["handlers"]
    assert (group["count"], group["unexplained"], [one["count"] for one in group["groups"]]) == (40, 0, [40])
    assert group["groups"][0]["what"] == "PermanentError: no such customer"
    assert (unserved["handler"], unserved["count"]) == ("bill", None)
    assert "only Service Bus has" in unserved["unreachable"]
    handler = cli.context().handler("send_invoice")
    for shard in range(SHARDS):
        at = partition("local", handler.name, shard)
        for row in list(cli.stores.claims.scan(at, "claim:", "claim;")):
            cli.stores.claims.commit(at, [Delete(row.key, row.etag)])
    bare = cli("dead-letters", "list", "send_invoice", "-n", "100")
    assert "there are 40: 8 have no claim, and a Storage queue shows 32 at most" in bare.stderr
    group, unserved = cli.json("dead-letters", "list")["handlers"]
    assert (group["count"], group["unexplained"]) == (40, 8)


def test_a_dead_letter_that_expires_is_warned_of(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the Functions host put aside is removed after a week; the list says when."""
    put_aside(cli, '{"id": 1, "bad": true}')
    letters = type(cli.transport.dead_letters(cli.context().handler("send_invoice")))
    peek = letters.peek
    expires = cli.clock.now() + timedelta(days=6)
    monkeypatch.setattr(
        letters, "peek", lambda self, limit: [replace(one, expires_at=expires) for one in peek(self, limit)]
    )
    result = cli("dead-letters", "list", "send_invoice", columns=200)
    assert "removed in 6 d" in result.stdout
    assert "put aside by the Functions host" in result.stderr
    [one] = cli.json("dead-letters", "list", "send_invoice")["dead_letters"]
    assert one["expires_at"] == expires.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_purge_removes_only_what_was_named(cli: CommandLine) -> None:
    """The others are there as before, at once."""
    put_aside(cli, *(f'{{"id": {n}, "bad": true}}' for n in range(3)))
    result = cli("dead-letters", "purge", "send_invoice", "--id", "invoices:1", "--yes")
    assert (result.exit_code, result.stdout) == (0, "send_invoice: 1 dead letter removed\n")
    listed = cli.json("dead-letters", "list", "send_invoice")["dead_letters"]
    assert [one["id"] for one in listed] == ["invoices:0", "invoices:2"]
    assert len(cli.transport.dead_letters(cli.context().handler("send_invoice")).take(9)) == 2


def test_purge_asks_first(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script must say --yes; at a terminal a person is asked, and no leaves everything as it is."""
    put_aside(cli, '{"id": 1, "bad": true}')
    script = cli("dead-letters", "purge", "send_invoice", "--all", columns=200)
    assert (script.exit_code, "every dead letter of send_invoice; add --yes" in script.stderr) == (2, True)
    terminal = types.SimpleNamespace(stdin=types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(dead_letters, "sys", terminal)
    monkeypatch.setattr(dead_letters.typer, "confirm", lambda *_, **__: False)
    assert cli("dead-letters", "purge", "send_invoice", "--all").exit_code == 3
    assert len(cli.transport.bodies("invoices/dead")) == 1


@pytest.mark.parametrize("command", ["replay", "purge"])
def test_which_dead_letters_must_be_said(cli: CommandLine, command: str) -> None:
    """Neither --id nor --all, or both, is wrong usage; an id that is not there does nothing and is 3."""
    for args in ([], ["--all", "--id", "1"]):
        assert cli("dead-letters", command, "send_invoice", *args).exit_code == 2
    more = ["--yes"] if command == "purge" else []
    assert cli("dead-letters", command, "send_invoice", "--id", "nope", *more).exit_code == 3


def test_dead_letters_explains_itself(cli: CommandLine) -> None:
    """Without a command it lists them, and each has examples."""
    assert {"list", "show", "replay", "purge"} <= set(cli("dead-letters").stdout.split())
    assert "$ runonce dead-letters replay" in cli("dead-letters", "replay", "--help").stdout
