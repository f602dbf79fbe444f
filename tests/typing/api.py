"""The public API as a type checker sees it: strict mypy must accept all of this, and each ignore must be needed.

A line that ends in `type: ignore[…]` is a mistake that the hints are there to find.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

from runonce import (
    AlreadyRecordedError,
    Fenced,
    HostStopping,
    InputError,
    LeaseLost,
    Message,
    PermanentError,
    Run,
    RunInterrupted,
    RunonceError,
    Tick,
    TimeLimitExceeded,
    effects,
    enqueue,
    enqueue_many,
    every,
    handler,
    scheduled,
)
from runonce.hooks import Hooks, Incident, MessageBegun, RunBegun, RunEnded, Sending, add, remove
from runonce.hosts.functions import build, idempotent
from runonce.once import Call, InProgressError, KeyReusedError, once
from runonce.testing import (
    BUSY,
    CUT_REPLY,
    DROP_REPLY,
    DROP_REQUEST,
    FAILED_AFTER_APPLY,
    HANG,
    Complete,
    Crash,
    CrashReport,
    DeadLetter,
    Fault,
    Host,
    ManualClock,
    Marks,
    MemorySender,
    Proxy,
    Reschedule,
    Sent,
    Settlement,
    StorageProxy,
    Workbench,
    crash_everywhere,
)

if TYPE_CHECKING:
    import azure.functions as func

# -- scheduled jobs ---------------------------------------------------------------------------------------------


def charge(number: int, *, cents: int) -> str:
    """A step."""
    return f"{number}: {cents}"


async def charge_async(number: int) -> str:
    """An async step."""
    return f"{number}"


@scheduled(
    "0 0 3 * * *", time_zone="Europe/Istanbul", misfire="all", retries=3, max_runtime=timedelta(hours=1)
)
def nightly(run: Run) -> None:
    """Everything a run offers."""
    assert_type(run.fire_time, datetime)
    assert_type(run.attempt, int)
    assert_type(run.idempotency_key, str)
    assert_type(run.fencing_token, int)
    assert_type(run.stopping, bool)
    assert_type(run.remaining(), float)
    for batch in run.batches([("a", 1)], size=1):
        assert_type(batch, list[tuple[str, int]])
    run.ledger.record("key", text="x", number=1, flag=True)
    run.ledger.record(1)  # type: ignore[arg-type]
    run.ledger.record("key", value=object())  # type: ignore[arg-type]
    assert_type(run.ledger.keys(), set[str])
    assert_type(run.step("charge", charge, 1, cents=2), str)
    assert_type(run.step_key("charge"), str)
    run.step("charge", charge, "1", cents=2)  # type: ignore[arg-type]
    run.checkpoint.save({"position": 1})
    run.checkpoint.load()
    assert_type(run.blobs.read("a"), bytes)
    assert_type(run.blobs.read_text("a"), str)
    assert_type(run.blobs.names(), list[str])
    run.blobs.write("a", b"bytes")
    run.blobs.write("a", "text")
    run.blobs.write("a", 1)  # type: ignore[arg-type]
    run.log.info("done")


@scheduled("0 0 3 * * *")
async def nightly_async(run: Run) -> None:
    """An async job."""
    async for batch in run.batches(range(3), size=1):
        assert_type(batch, list[int])
    assert_type(await run.step("charge", charge_async, 1), str)


@scheduled("0 0 3 * * *", misfire="sometimes")  # type: ignore[arg-type]
def wrong_choice(run: Run) -> None: ...


@scheduled("0 0 3 * * *")  # type: ignore[arg-type]
def wrong_parameter(run: int) -> None: ...


scheduled("0 0 3 * * *", retry=3)  # type: ignore[call-arg]


@every("30s")
def refresh(tick: Tick) -> None:
    """On every host."""
    assert_type(tick.stopping, bool)
    tick.check()
    tick.log.info("refreshed")


@every(timedelta(minutes=5), name="watching")
async def watch_it() -> None:
    """An async one."""


every(None)  # type: ignore[arg-type]


# -- handlers ---------------------------------------------------------------------------------------------------


def by_order(message: Message) -> str:
    """A key function."""
    return message.text


@handler(
    queue="orders",
    key=by_order,
    retries=1,
    lock="tenant:{tenant}",
    on_abandoned="hold",
    reconcile=lambda _: None,
)
def place_order(message: Message) -> str:
    """Everything a message offers."""
    assert_type(message.body, bytes)
    assert_type(message.text, str)
    assert_type(message.json, Any)
    assert_type(message.key, str)
    assert_type(message.message_id, str)
    assert_type(message.attempt, int)
    assert_type(message.delivery_count, int)
    assert_type(message.enqueued_at, datetime | None)
    assert_type(message.idempotency_key, str)
    assert_type(message.fencing_token, int)
    assert_type(message.stopping, bool)
    for batch in message.batches("ab", size=1):
        assert_type(batch, list[str])
    message.enqueue(place_order, {"id": 1})
    assert_type(message.step("charge", charge, 1, cents=2), str)
    assert_type(message.step_key("charge"), str)
    message.commit({"row": {"text": "x", "number": 1, "flag": True}})
    message.commit({"row": {"text": object()}})  # type: ignore[dict-item]
    message.commit(["row"])  # type: ignore[arg-type]
    return "kept"


@handler(topic="orders", subscription="billing", key="id")
async def bill(message: Message) -> None:
    """An async handler of a topic."""


@handler(queue="orders", key="id", batch=50)
def place_orders(messages: list[Message]) -> None:
    """A handler of batches."""
    for message in messages:
        message.fail(ValueError("why"))
        message.fail("why")  # type: ignore[arg-type]


@handler(queue="placed", after_all=place_order)
def placed(message: Message) -> None:
    """A handler that waits for another one."""


handler(queue="orders", on_abandoned="never")  # type: ignore[arg-type]
handler("orders")  # type: ignore[arg-type]


# -- functions with a key ---------------------------------------------------------------------------------------


@once(key="order", retention=timedelta(days=1), busy="refuse", fingerprint=("order", "cents"))
def pay(order: str, cents: int = 5) -> dict[str, int]:
    """A call under its claim."""
    call = Call.current()
    assert_type(call.attempt, int)
    assert_type(call.idempotency_key, str)
    call.check()
    return {order: cents}


@once(key=lambda order: f"{order}")
async def pay_async(order: str) -> None:
    """An async one."""


@idempotent(required=False, client=lambda request: request.headers["user"])
def serve(req: func.HttpRequest) -> str:
    """A route."""
    return str(req.method)


async def call_once() -> None:
    """The functions keep their types."""
    try:
        assert_type(pay("1001", cents=7), dict[str, int])
        pay(1001)  # type: ignore[arg-type]
    except (InProgressError, KeyReusedError):
        assert_type(await pay_async("1001"), None)


once(key="order", busy="drop")  # type: ignore[arg-type]


# -- programs ---------------------------------------------------------------------------------------------------


def send() -> None:
    """What a program beside the hosts does."""
    assert_type(enqueue(place_order, {"id": 1}, at=datetime(2026, 1, 1, tzinfo=UTC)), str)
    assert_type(enqueue_many(place_order, [{"id": 1}]), list[str])
    assert_type(enqueue("place_order", {"id": 1}, queue="orders", key="1"), str)
    assert_type(enqueue_many("place_order", [{"id": 1}], manifest=Path("infra/jobs.json")), list[str])
    enqueue(7, {"id": 1})  # type: ignore[arg-type]
    enqueue(nightly, {"id": 1})  # type: ignore[arg-type]
    assert_type(effects(place_order), Iterator[dict[str, str | int | float | bool]])


class Watching(Hooks):
    """A hook."""

    def before_run(self, run: RunBegun) -> None:
        """What a run is."""
        assert_type(run.fire_time, datetime)
        run.attempt = 2  # type: ignore[misc]

    def after_run(self, ended: RunEnded) -> None:
        """How it ended."""
        assert_type(ended.run.job, str)

    def before_message(self, message: RunBegun) -> None:  # type: ignore[override]
        """Another event."""

    def on_incident(self, incident: Incident) -> None:
        """An incident."""
        assert_type(incident.since, datetime | None)

    def before_send(self, sending: Sending) -> None:
        """Headers."""
        sending.headers["colour"] = "red"


def watch(message: MessageBegun) -> None:
    """Hooks are objects."""
    assert_type(message.headers, dict[str, str])
    watching = Watching()
    add(watching)
    remove(watching)
    add(Watching)  # type: ignore[arg-type]


def app() -> func.FunctionApp:
    """function_app.py."""
    return build(Path())


def stop(error: RunonceError) -> bool:
    """Which errors ask a run to end."""
    kinds: tuple[type[RunInterrupted], ...] = (LeaseLost, Fenced, HostStopping, TimeLimitExceeded)
    others: tuple[type[RunonceError], ...] = (PermanentError, InputError, AlreadyRecordedError)
    return isinstance(error, kinds) and not isinstance(error, others)


# -- tests ------------------------------------------------------------------------------------------------------


def bench() -> None:
    """What a test of a job and of a handler does."""
    made = Workbench(nightly, nightly_async, clock=ManualClock())
    made.put("orders.csv", "1001,TR\n")
    result = made.run(nightly, at="2026-11-29T03:00:00Z")
    assert_type(result.attempt, int)
    assert_type(result.reason, str)
    assert_type(result.ran, bool)
    assert_type(result.error, BaseException | None)
    made.run(nightly, at=datetime(2026, 1, 1, tzinfo=UTC))
    made.run(place_order, at="2026-11-29T03:00:00Z")  # type: ignore[arg-type]
    settlement = made.deliver(place_order, {"id": 1}, delivery_count=2)
    assert_type(settlement, Settlement)
    assert_type(settlement, Complete | Reschedule | DeadLetter)
    assert_type(made.sender, MemorySender)
    made.deliver(nightly, {"id": 1})  # type: ignore[arg-type]
    assert_type(made.sent, list[Sent])
    assert_type(made.blobs(), dict[str, bytes])
    made.clock.advance(60)


def crashes() -> None:
    """What a test of deaths does."""
    marks = Marks()
    marks("charge 1001")
    report = crash_everywhere(
        nightly, at="2026-11-29T03:00:00Z", prepare=lambda b: b.put("a", ""), marks=marks
    )
    assert_type(report, CrashReport)
    assert_type(report.repeated, dict[str, list[str]])
    report.check(may_repeat=["charge 1001"])
    for crash in report.crashes:
        assert_type(crash, Crash)
        assert_type(crash.applied, bool)
    crash_everywhere(place_order, {"id": 1}, marks=marks)
    crash_everywhere(place_order)  # type: ignore[call-overload]
    crash_everywhere(nightly, {"id": 1})  # type: ignore[call-overload]


def chaos(proxy: StorageProxy, host: Host) -> None:
    """What a test of real processes does."""
    for fault in (BUSY, CUT_REPLY, DROP_REPLY, DROP_REQUEST, FAILED_AFTER_APPLY, HANG, Fault(delay=1.5)):
        proxy.inject(fault, "^PUT", times=2)
    proxy.inject("busy")  # type: ignore[arg-type]
    assert_type(proxy.table, Proxy)
    assert_type(proxy.table.requests, list[str])
    assert_type(proxy.connection_string, str)
    host.wait_for("started")
    host.pause()
    host.resume()
    host.kill()
    assert_type(host.stop(), int)
    assert_type(host.log, str)
