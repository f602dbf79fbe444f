"""On the classic Functions worker, too, no line of a run or a message is lost: each carries its invocation."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from runonce.execution.turns import Turns
from runonce.hosts.functions.handlers import _awaiting, _function
from runonce.hosts.runtime import Runtime
from runonce.runs.definition import scheduled
from runonce.testing import Workbench
from tests.support.classic_worker import ContextEnabledTask, HostLog, invoke, worker_module
from tests.support.flows import at
from tests.support.messages import delivery, handling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.messages.message import Message
    from runonce.runs.run import Run


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = worker_module()
    monkeypatch.setitem(sys.modules, "azure_functions_worker.dispatcher", module)
    return module


@pytest.fixture
def host(worker: Any) -> Iterator[HostLog]:
    log, root = HostLog(worker), logging.getLogger("runonce")
    level = root.level
    root.setLevel(logging.INFO)
    root.addHandler(log)
    yield log
    root.removeHandler(log)
    root.setLevel(level)


@scheduled("0 0 * * * *", name="one")
def plain(run: Run) -> None:
    run.log.info("one: body")


@scheduled("0 0 * * * *", name="two")
async def awaiting(run: Run) -> None:
    async def child() -> None:
        await asyncio.sleep(0.01)
        run.log.info("two: task")

    run.log.info("two: body")
    await asyncio.gather(child(), asyncio.create_task(child()))
    await asyncio.to_thread(run.log.info, "two: thread")
    await asyncio.sleep(0.05)
    run.log.info("two: end")


@scheduled("0 0 * * * *", name="three")
async def failing(run: Run) -> None:
    await asyncio.sleep(0.02)
    run.log.info("three: body")
    raise ValueError("no such customer")


def test_every_line_of_a_run_carries_its_invocation(worker: Any, host: HostLog) -> None:
    """Sync and async jobs that run at the same time: bodies, tasks, threads, and what the toolkit says of each."""
    bench = Workbench(plain, awaiting, failing)
    bench.clock.advance(3 * 3600)
    threads = [
        invoke(worker, f"i-{job.name}", lambda job=job: bench.dispatcher.execute(job, at(3), by="timer"))  # type: ignore[misc]
        for job in (plain, awaiting, failing)
    ]
    for thread in threads:
        thread.join(20)
    said = [
        (name, line) for name, line in host.lines if any(word in line for word in ("one", "two", "three"))
    ]
    assert len(said) >= 3 * 2 + 1 + 5 + 1
    for name in ("one", "two", "three"):
        assert {of for of, line in said if f"[{name} " in line} == {f"i-{name}"}
    assert sum("two: task" in line for _, line in said) == 2
    assert any("no such customer" in line for _, line in said)
    assert not [line for of, line in host.lines if of is None]


def test_every_line_of_a_message_carries_its_invocation(worker: Any, host: HostLog) -> None:
    """An async handler's body, and that its message is dead-lettered."""

    async def body(message: Message) -> None:
        await asyncio.sleep(0)
        message.log.info("body of %s", message.key)
        raise ValueError("no such address")

    bench = Workbench()
    invoke(worker, "i-1", lambda: bench.deliverer.deliver(handling(body, retries=0), delivery())).join(20)
    lines = [line for _, line in host.lines]
    assert any("body of A-17" in line for line in lines)
    assert any("dead-lettered (Failed)" in line for line in lines)
    assert {of for of, _ in host.lines} == {"i-1"}


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.usefixtures("worker")
def test_a_handlers_function_on_the_workers_own_loop(host: HostLog, *, is_async: bool) -> None:
    """The function is a task of the worker's loop, its message has a thread, its body another loop: one invocation."""

    def plain_body(message: Message) -> None:
        message.log.info("body of %s", message.key)

    async def async_body(message: Message) -> None:
        await asyncio.sleep(0)
        message.log.info("body of %s", message.key)

    bench = Workbench()
    runtime = Runtime(
        bench.settings, stores=bench.stores, clock=bench.clock, sender=bench.sender, host="functions"
    )
    handler = handling(async_body if is_async else plain_body)
    function = _awaiting(_function(runtime, handler, Turns(2, runtime.stop), lambda message: message), object)

    async def invoked() -> None:
        asyncio.get_running_loop().set_task_factory(
            lambda loop, body, **options: ContextEnabledTask(body, loop, **options)
        )
        for n in range(2):
            context = SimpleNamespace(invocation_id=f"i-{n}", function_name="take")
            message = delivery({"id": f"order-{n}"}, message_id=f"m-{n}")
            task: Any = asyncio.get_running_loop().create_task(function(message, context))
            task.set_azure_invocation_id(f"i-{n}")
            await task

    asyncio.run(invoked())
    for n in range(2):
        lines = [line for of, line in host.lines if of == f"i-{n}"]
        assert any(f"body of order-{n}" in line for line in lines)
        assert any("done" in line for line in lines)
    assert not [line for of, line in host.lines if of is None]


def test_what_belongs_to_no_invocation_has_none(worker: Any, host: HostLog) -> None:
    """A run begun outside of one, as by a test in the app's process, is given none of another's."""
    bench = Workbench(awaiting)
    bench.clock.advance(4 * 3600)
    invoke(worker, "i-1", lambda: bench.dispatcher.execute(awaiting, at(3), by="timer")).join(20)
    host.lines.clear()
    thread = threading.Thread(target=lambda: bench.dispatcher.execute(awaiting, at(4), by="timer"))
    thread.start()
    thread.join(20)
    assert host.lines
    assert {of for of, _ in host.lines} == {None}
