"""The workbench that users test their handlers with."""

from __future__ import annotations

import gc
import threading

import pytest

from runonce import InputError, Message, PermanentError, Run, enqueue, handler, scheduled
from runonce.errors import SettingsError
from runonce.testing import Complete, DeadLetter, Reschedule, Sent, Workbench


@handler(queue="mails", key="mail")
def send_mail(message: Message) -> None:
    """Stands in for another handler."""


@handler(queue="invoices", key="invoice_id", retries=1, retry_delay=30)
def send_invoice(message: Message) -> str:
    """Commits a row and sends a follow-up."""
    number = message.json["invoice_id"]
    if message.json.get("broken"):
        raise PermanentError("broken")
    if message.json.get("flaky") and message.attempt == 1:
        raise ConnectionError("provider away")
    message.enqueue(send_mail, {"mail": number})
    message.commit({f"invoice {number}": {"paid": False}})
    return f"sent {number}"


@handler(queue="ticks")
async def tick(message: Message) -> int:
    """Has no key but its message's id, and is async."""
    return len(message.body)


def test_the_example_in_the_docs() -> None:
    """A message delivered twice has one effect, whose rows and follow-ups can be looked at."""
    bench = Workbench()
    assert bench.deliver(send_invoice, {"invoice_id": 7}) == Complete(result="sent 7")
    assert bench.deliver(send_invoice, {"invoice_id": 7}, delivery_count=2) == Complete(duplicate=True)
    assert bench.effects(send_invoice) == [{"name": "invoice 7", "key": "7", "paid": False}]
    assert [sent.json for sent in bench.sent] == [{"mail": 7}] * 2
    assert len({sent.message_id for sent in bench.sent}) == 1


def test_retries_need_the_clock_to_go_on() -> None:
    """A failing message comes again when its delay is over, and is dead-lettered when its retries are used up."""
    bench = Workbench()
    settlement = bench.deliver(send_invoice, {"invoice_id": 7, "flaky": True})
    assert isinstance(settlement, Reschedule)
    assert isinstance(
        bench.deliver(send_invoice, {"invoice_id": 7, "flaky": True}, reschedules=1), Reschedule
    )
    bench.clock.advance(settlement.delay)
    assert isinstance(bench.deliver(send_invoice, {"invoice_id": 7, "flaky": True}, reschedules=2), Complete)
    assert isinstance(bench.deliver(send_invoice, {"invoice_id": 8, "broken": True}), DeadLetter)


def test_what_was_sent_is_seen_whole() -> None:
    """A follow-up shows its queue, id, body and time."""
    bench = Workbench()
    bench.deliver(send_invoice, {"invoice_id": 7})
    (sent,) = bench.sent
    assert sent == Sent("mails", sent.message_id, b'{"mail":7}', None)
    assert sent.message_id.startswith("send_invoice-")
    bench.sender.close()


def test_a_handler_without_a_key_and_async() -> None:
    """Without a key the same body is the same message, unless its id says otherwise; async makes no difference."""
    bench = Workbench()
    assert bench.deliver(tick, b"four") == Complete(result=4)
    assert bench.deliver(tick, "four") == Complete(duplicate=True)
    assert bench.deliver(tick, b"four", message_id="another") == Complete(result=4)


@pytest.mark.parametrize("body", [b"no json", {}, {"invoice_id": None}, {"invoice_id": ""}])
def test_a_bad_message_is_a_dead_letter(body: object) -> None:
    """A message without its key is refused by the handler's host, as it would be when deployed."""
    assert isinstance(Workbench().deliver(send_invoice, body), DeadLetter)


@pytest.mark.slow
def test_benches_leave_no_threads_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workbench that is gone has no thread left, however many a test suite makes."""
    here, start = {threading.current_thread()}, threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        if threading.current_thread() in here:  # not what a thread of an earlier test starts meanwhile
            here.add(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    for _ in range(30):
        Workbench().deliver(send_invoice, {"invoice_id": 7})
    gc.collect()
    here.remove(threading.current_thread())
    assert here
    for thread in here:
        thread.join(10)
        assert not thread.is_alive(), thread


def test_a_bench_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of a job pings no check and calls no on_failure, whatever the job and the environment say."""
    told: list[object] = []
    monkeypatch.setenv("RUNONCE_NOTIFY_URL", "http://127.0.0.1:9/hook")
    monkeypatch.setenv("RUNONCE_TELEMETRY", "otlp")
    monkeypatch.setattr("runonce.notify.set_up.listen", lambda *_: told.append("notify"))
    monkeypatch.setattr("runonce.telemetry.set_up.listen", lambda *_: told.append("telemetry"))

    @scheduled("0 0 3 * * *", ping_url="http://127.0.0.1:9/ping", on_failure=told.append)
    def failing(_: Run) -> None:
        raise PermanentError("no")

    assert Workbench(failing).run(failing, at="2026-01-01T03:00:00Z").outcome == "failed"
    assert told == []


def test_what_a_job_enqueues_stays_on_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """`enqueue` needs no setting there and reaches no broker; outside the bench it does again."""
    monkeypatch.delenv("RUNONCE_STORAGE", raising=False)
    monkeypatch.delenv("AzureWebJobsStorage", raising=False)

    @scheduled("0 0 3 * * *", name="sends")
    def sends(run: Run) -> None:  # noqa: ARG001
        enqueue(send_mail, {"mail": 1})

    bench = Workbench(sends)
    assert bench.run(sends, at="2026-11-29T03:00:00Z").outcome == "succeeded"
    assert [(sent.queue, sent.json) for sent in bench.sent] == [("mails", {"mail": 1})]
    with pytest.raises(SettingsError):
        enqueue(send_mail, {"mail": 2})


def test_delays_are_not_random_there() -> None:
    """A retry waits exactly as long as the job or the handler says."""
    bench = Workbench()
    settlement = bench.deliver(send_invoice, {"invoice_id": 7, "flaky": True})
    assert isinstance(settlement, Reschedule)
    assert settlement.delay == 30.0


def test_an_instant_without_an_offset_is_in_the_jobs_zone() -> None:
    """03:00 of a job in Istanbul is midnight UTC."""

    @scheduled("0 0 3 * * *", name="zoned", time_zone="Europe/Istanbul")
    def zoned(run: Run) -> None:
        assert run.fire_time.hour == 0

    result = Workbench(zoned).run(zoned, at="2026-11-29T03:00:00")
    assert (result.outcome, result.fire_time.isoformat()) == ("succeeded", "2026-11-29T00:00:00+00:00")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_whose_host_dies_is_recovered(is_async: bool) -> None:
    """What was committed is not done again, and the rest is done once; nothing is left after that."""
    done: list[int] = []

    def work(run: Run) -> None:
        for (item,) in run.batches(range(3), size=1):
            done.append(item)

    async def work_too(run: Run) -> None:
        work(run)

    job = scheduled("0 0 3 * * *", name="dies")(work_too if is_async else work)
    bench = Workbench(job)
    bench.kill(job, at="2026-11-29T03:00:00Z")
    assert done == [0, 1, 2]
    assert [(one.outcome, one.attempt) for one in bench.recover()] == [("succeeded", 2)]
    assert done == [0, 1, 2]
    assert bench.recover() == []
    with pytest.raises(InputError, match="did not begin"):
        bench.kill(job, at="2026-11-29T03:00:00Z")
