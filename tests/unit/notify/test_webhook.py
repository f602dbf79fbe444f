"""RUNONCE_NOTIFY_URL: incidents as JSON, one message each, on a real server."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import recovered, replica
from support.hooks import added
from support.listener import HANG
from support.messages import delivery, handling, host_of, silence

from runonce.errors import PermanentError
from runonce.execution import hooks
from runonce.hosts.purge import NAME as PURGE
from runonce.notify.set_up import listen
from runonce.notify.webhook import Webhook
from runonce.runs.definition import scheduled
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome
from runonce.testing import Complete, DeadLetter, Workbench
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.listener import Listener

    from runonce.messages.message import Message
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run

SECRET = "T0K3N-s3cr3t"


@pytest.fixture
def webhook(server: Listener) -> Iterator[Webhook]:
    """The webhook, to the server."""
    with added(one := Webhook(f"{server.url}/{SECRET}")):
        yield one


def hourly(*steps: BaseException | None) -> ScheduledJob:
    left = list(steps)

    @scheduled("0 0 * * * *")
    def hourly(_: Run) -> None:
        step = left.pop(0) if left else None
        if step is not None:
            raise step

    return hourly


def events(server: Listener) -> list[Any]:
    """What was told so far, but of the toolkit's own job, which nobody ticks here."""
    assert hooks.drain(20)
    return [request.json for request in server.requests if request.json["name"] != PURGE]


@pytest.mark.usefixtures("webhook")
def test_a_job_that_fails_every_hour_on_three_replicas_is_two_messages(server: Listener) -> None:
    """One when it begins to fail and one when it works again, with one id, whichever replica ran it."""
    no = PermanentError("the bank is closed")
    job = hourly(no, no, no, no, None)
    bench = Workbench(job, clock=PassingClock())
    replicas = [bench.dispatcher, replica(bench, host="b"), replica(bench, host="c")]
    for number in range(5):
        bench.clock.advance(3600)
        for one in (*replicas[number % 3 :], *replicas[: number % 3]):
            one.tick(job)
            recover(one)
    failed, well = events(server)
    assert failed == {
        "text": "[test] hourly: fire time 2026-01-01T01:00:00Z, attempt 1 failed for good: "
        "PermanentError: the bank is closed",
        "event": "failed",
        "incident": failed["incident"],
        "namespace": "test",
        "name": "hourly",
        "fire_time": "2026-01-01T01:00:00Z",
        "message_id": None,
        "attempt": 1,
        "count": 1,
        "reason": "PermanentError: the bank is closed",
        "since": "2026-01-01T01:00:00Z",
        "at": "2026-01-01T01:00:00Z",
        "host": "test",
    }
    assert (well["event"], well["incident"]) == ("recovered", failed["incident"])
    assert well["text"] == "[test] hourly works again (fire time 2026-01-01T05:00:00Z, attempt 1): was failed"
    assert well["since"] == failed["since"]
    assert {request.content_type for request in server.requests} == {"application/json"}


@pytest.mark.usefixtures("webhook")
def test_a_night_without_hosts_is_told_once(server: Listener) -> None:
    """Missed, then recovered: not one message a minute, and not one a fire time."""
    job = hourly()
    bench = Workbench(job, clock=PassingClock())
    bench.clock.advance(3600)
    bench.dispatcher.tick(job)
    bench.clock.advance(8 * 3600 + 600)
    for one in (bench.dispatcher, replica(bench, host="b")):
        for _ in range(3):
            recover(one)
    assert [(event["event"], event["fire_time"]) for event in events(server)] == [
        ("missed", "2026-01-01T09:00:00Z")
    ]
    assert Outcome.SUCCEEDED in {one.outcome for one in recovered(bench.dispatcher, bench.clock)}
    assert [event["event"] for event in events(server) if event["name"] == "hourly"] == [
        "missed",
        "recovered",
    ]


def failing(count: list[int]) -> Any:
    def body(_: Message) -> None:
        count[0] -= 1
        if count[0] >= 0:
            raise PermanentError("no such customer")

    return handling(body)


@pytest.mark.usefixtures("webhook")
def test_a_dead_letter_is_told_once_though_three_hosts_see_it(server: Listener) -> None:
    """Only the host that failed its claim tells it; its key and body are not told."""
    bench = Workbench(clock=PassingClock())
    silence(bench.deliverer)
    one = failing([1])
    came = delivery({"id": "A-17", "card": "4111"}, message_id="m-1", count=2)
    for host in (bench.deliverer, host_of(bench, name="b"), host_of(bench, name="c")):
        assert isinstance(host.deliver(one, came), DeadLetter)
    [told] = events(server)
    assert (told["event"], told["name"], told["message_id"]) == ("dead_lettered", "send_invoice", "m-1")
    assert told["reason"] == "Handler send_invoice, message m-1: PermanentError: no such customer"
    assert "4111" not in str(told)
    assert "A-17" not in str(told)


@pytest.mark.slow
def test_thousands_of_dead_letters_are_a_few_messages(
    server: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is told at once, the others together a while later; what is left is told when the process ends."""
    monkeypatch.setattr("runonce.notify.webhook.FIRST", 3.0)
    bench = Workbench(clock=PassingClock())
    silence(bench.deliverer)
    one = failing([1000])
    webhook = Webhook(server.url)
    with added(webhook):
        for number in range(100):
            bench.deliverer.deliver(one, delivery({"id": str(number)}, message_id=f"m-{number}"))
        assert hooks.drain(20)
        told = [request.json for request in server.wait(2)]
        assert [event["count"] for event in told] == [1, 99]
        assert told[1]["text"].startswith(
            "[test] send_invoice: 99 more messages were dead-lettered, the last"
        )
        for number in range(100, 110):
            bench.deliverer.deliver(one, delivery({"id": str(number)}, message_id=f"m-{number}"))
        assert hooks.drain(20)
    webhook.close(10)
    assert [event["count"] for event in events(server)] == [1, 99, 10]


@pytest.mark.slow
def test_a_replay_of_many_is_a_few_messages(server: Listener) -> None:
    """A hundred dead letters that are handled after all are one message each way at once, the others together."""
    bench = Workbench(clock=PassingClock())
    silence(bench.deliverer)
    one = failing([100])
    webhook = Webhook(server.url)
    with added(webhook):
        for again in (False, True):
            for number in range(100):
                body = {"id": str(number), "corrected": again}
                bench.deliverer.deliver(one, delivery(body, message_id=f"m-{number}", count=2))
        assert hooks.drain(20)
    webhook.close(10)
    told = [(event["event"], event["count"]) for event in events(server)]
    assert told == [("dead_lettered", 1), ("recovered", 1), ("dead_lettered", 99), ("recovered", 99)]
    assert "99 more messages were handled after all" in server.requests[-1].json["text"]


@pytest.mark.slow
def test_a_webhook_that_hangs_is_in_nobodys_way(server: Listener) -> None:
    """Fifty failing runs take no longer for a server that takes requests and never answers."""
    server.always = HANG
    job = hourly(*[PermanentError("no"), None] * 25)
    bench = Workbench(job, clock=PassingClock())
    with added(Webhook(server.url)):
        began = time.monotonic()
        for _ in range(50):
            bench.clock.advance(3600)
            bench.dispatcher.tick(job)
        assert time.monotonic() - began < 10
        server.wait(1)
        assert not hooks.drain(0.1)
        server.release.set()


def test_a_process_that_ends_waits_bounded_time(
    server: Listener, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing takes its last words and no more, whatever the server does; nothing secret is logged meanwhile."""
    for seconds in ("ANSWER", "LONGEST"):
        monkeypatch.setattr(f"runonce.notify.post.{seconds}", 20.0)
    caplog.set_level(logging.DEBUG)
    server.always = HANG
    webhook = Webhook(f"{server.url}/{SECRET}")
    bench = Workbench(clock=PassingClock())
    silence(bench.deliverer)
    one = failing([5])
    with added(webhook):
        for number in range(5):
            bench.deliverer.deliver(one, delivery({"id": str(number)}, message_id=f"m-{number}"))
        began = time.monotonic()
        webhook.close(0.3)
        assert time.monotonic() - began < 10
        server.release.set()
    assert SECRET not in caplog.text


def test_nothing_is_added_where_nothing_is_asked_for() -> None:
    """No URL, no ping, no function: no hook."""
    with ExitStack() as made:
        listen("", {"hourly": hourly()}, {"send_invoice": handling()}, made)
        assert not any(hooks.listening(name) for name in hooks.METHODS)


def test_what_is_added_is_removed(server: Listener) -> None:
    """The hook goes with the host that added it."""
    with ExitStack() as made:
        listen(server.url, {}, {}, made)
        assert hooks.listening("on_incident")
    assert not hooks.listening("on_incident")


@pytest.mark.usefixtures("webhook")
def test_what_goes_well_is_not_told(server: Listener) -> None:
    """Runs and messages that succeed, and failures that are tried again, are no incidents."""
    job = hourly()
    bench = Workbench(job, clock=PassingClock())
    silence(bench.deliverer)
    for _ in range(5):
        bench.clock.advance(timedelta(hours=1).total_seconds())
        bench.dispatcher.tick(job)
    assert bench.deliverer.deliver(handling(), delivery()) == Complete()
    assert events(server) == []


def test_a_second_runtime_of_the_process_leaves_the_hosts_hook(server: Listener) -> None:
    """A job that calls `runonce.client` has a runtime of its own for a moment: who is told stays as the host said."""
    with ExitStack() as host:
        listen(server.url, {}, {}, host)
        with ExitStack() as other:
            listen("http://127.0.0.1:9/elsewhere", {}, {}, other)
        bench = Workbench(clock=PassingClock())
        silence(bench.deliverer)
        bench.deliverer.deliver(failing([1]), delivery())
        assert [event["event"] for event in events(server)] == ["dead_lettered"]
    assert not hooks.listening("on_incident")
