"""Hooks are called, each in a thread of its own, and can hurt nobody."""

from __future__ import annotations

import contextvars
import logging
import multiprocessing
import threading
import time
from typing import Any

import pytest
from support.hooks import Heard, added, hearing

from runonce import hooks
from runonce.errors import DefinitionError
from runonce.execution import hooks as calls
from runonce.hooks import Hooks, NotRun, Sending

EVENT = NotRun(namespace="n", name="nightly", why="held elsewhere", reason="held elsewhere")
SENDING = Sending(target="invoices", message_ids=["1"])


def test_with_none_added_nobody_listens() -> None:
    """An event is not even made where nobody wants to hear of it."""
    assert not any(calls.listening(name) for name in calls.METHODS)


def test_only_what_a_class_overrides_is_listened_for() -> None:
    """A hook with one method makes that event alone worth making."""

    class One(Hooks):
        def on_not_run(self, refused: NotRun) -> None: ...

    with added(One()):
        assert [name for name in calls.METHODS if calls.listening(name)] == ["on_not_run"]


def test_a_hook_is_called_in_another_thread_in_order() -> None:
    """Calls come one after the other, not in the thread that tells, with the variables of that."""
    variable = contextvars.ContextVar[int]("variable", default=0)
    seen: list[tuple[int, bool]] = []

    class Looks(Hooks):
        def on_not_run(self, _: NotRun) -> None:
            seen.append((variable.get(), threading.current_thread() is threading.main_thread()))

    with added(Looks()):
        for number in range(50):
            variable.set(number)
            calls.tell("on_not_run", EVENT)
        assert calls.drain(10)
    assert seen == [(number, False) for number in range(50)]


def test_a_class_is_added_once() -> None:
    """A job file that is imported again adds its hook again, which takes the place of the first."""
    first, second = Heard(), Heard()
    with added(first, second):
        calls.tell("on_not_run", EVENT)
        assert second.names() == ["on_not_run"]
        assert first.names() == []


def test_a_removed_hook_is_called_no_more() -> None:
    """What is removed hears of nothing."""
    heard = Heard()
    hooks.add(heard)
    hooks.remove(heard)
    calls.tell("on_not_run", EVENT)
    assert heard.names() == []


def test_a_hook_that_raises_is_logged_once_and_called_again(caplog: pytest.LogCaptureFixture) -> None:
    """Every call is made although each fails, whatever is raised; the log has the first failure with its place."""
    with hearing() as heard:
        for error in (ValueError("no"), SystemExit(3), KeyboardInterrupt()):
            heard.error = error
            calls.tell_and_wait("before_send", SENDING)
        assert heard.names() == ["before_send"] * 3
    records = [record for record in caplog.records if record.name == "runonce.hooks"]
    assert [record.getMessage() for record in records] == [
        "Hooks Heard: its before_send failed; further failures of it are not logged"
    ]
    assert records[0].exc_info


@pytest.mark.slow
def test_a_hook_that_hangs_is_waited_for_once(caplog: pytest.LogCaptureFixture) -> None:
    """The first call that hangs costs a second, the next ones nothing, and it hears of them when it goes on."""
    with hearing() as heard:
        heard.go_on.clear()
        began = time.monotonic()
        calls.tell_and_wait("before_send", SENDING)
        took = time.monotonic() - began
        assert 0.9 < took < 10
        for _ in range(100):
            calls.tell_and_wait("before_send", SENDING)
        assert time.monotonic() - began - took < 20  # a second each would be a hundred
        assert not calls.drain(0.1)
        heard.go_on.set()
        assert len(heard.names()) == 101
        calls.tell_and_wait("before_send", SENDING)
        assert heard.calls[101:], "it has caught up, so it is waited for again"
    assert [record.getMessage() for record in caplog.records].count(
        "Hooks Heard: its before_send took over 1 s, so what it is told of went on"
    ) == 1


def test_a_hook_that_hangs_keeps_no_other_waiting() -> None:
    """Another hook hears of everything meanwhile."""

    class Stuck(Hooks):
        def __init__(self) -> None:
            self.go_on = threading.Event()

        def on_not_run(self, _: NotRun) -> None:
            self.go_on.wait(30)

    stuck, heard = Stuck(), Heard()
    with added(stuck, heard):
        calls.tell("on_not_run", EVENT)
        calls.tell("on_not_run", EVENT)
        for _ in range(1000):
            if len(heard.calls) == 2:
                break
            time.sleep(0.01)
        assert [name for name, _ in heard.calls] == ["on_not_run"] * 2
        stuck.go_on.set()


def test_what_a_hook_cannot_keep_up_with_is_dropped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of a hook is bounded: it does not hear of what comes while that is full, and the log says so once."""
    monkeypatch.setattr(calls, "LONGEST_QUEUE", 3)
    with hearing() as heard:
        heard.go_on.clear()
        for _ in range(10):
            calls.tell("on_not_run", EVENT)
        heard.go_on.set()
        assert len(heard.names()) in (3, 4)
    assert [r.getMessage() for r in caplog.records] == [
        "Hooks Heard takes too long: it is not told what happens until it has caught up"
    ]


def test_without_a_thread_nothing_is_told_and_nothing_raised(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no thread can be started, as at the interpreter's end, what happens goes on."""

    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with hearing() as heard:
        monkeypatch.setattr(threading.Thread, "start", none_left)
        calls.tell_and_wait("before_send", SENDING)
        calls.tell("on_not_run", EVENT)
        monkeypatch.undo()
        assert [r.getMessage() for r in caplog.records] == [
            "Hooks Heard is not told what happens: can't start new thread"
        ]
        calls.tell("on_not_run", EVENT)
        assert heard.names() == ["on_not_run"]


def test_a_hook_that_does_not_want_it_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`waited_for = False`: what happens goes on at once."""
    monkeypatch.setattr(calls, "PATIENCE", 20.0)

    class Slow(Heard):
        waited_for = False

    slow = Slow()
    slow.go_on.clear()
    with added(slow):
        began = time.monotonic()
        calls.tell_and_wait("before_send", SENDING)
        assert time.monotonic() - began < 10
        slow.go_on.set()
        assert slow.names() == ["before_send"]


def test_what_a_hook_does_itself_it_does_not_hear_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that sends a message is not called for that, or it would wait for itself."""
    monkeypatch.setattr(calls, "PATIENCE", 20.0)

    class Sends(Hooks):
        def __init__(self) -> None:
            self.calls = 0

        def before_send(self, _: Sending) -> None:
            self.calls += 1
            calls.tell_and_wait("before_send", SENDING)

    sends = Sends()
    with added(sends):
        began = time.monotonic()
        calls.tell_and_wait("before_send", SENDING)
        assert time.monotonic() - began < 10
        assert sends.calls == 1


class Misspelt(Hooks):
    def after_runs(self, ended: Any) -> None: ...


class Async(Hooks):
    async def after_run(self, ended: Any) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Misspelt(), "nothing calls its after_runs; did you mean after_run"),
        (Async(), "its after_run is async; make it a plain def"),
        (Hooks, "add an object of a class of yours that derives from runonce.hooks.Hooks"),
        (print, "add an object of a class of yours"),
    ],
    ids=["misspelt", "async", "a class", "a function"],
)
def test_a_hook_that_would_never_be_called_is_refused(wrong: Any, message: str) -> None:
    """What cannot work is one error when it is added, and nothing is added."""
    with pytest.raises(DefinitionError, match=message):
        hooks.add(wrong)
    assert not calls.listening("after_run")


def _in_child(told: Any) -> None:
    class Tells(Hooks):
        def on_not_run(self, _: NotRun) -> None:
            told.set()

    hooks.add(Tells())
    calls.tell("on_not_run", EVENT)
    calls.drain(10)


def test_a_forked_child_has_its_hooks() -> None:
    """A child process hears of what happens in it, though its parent's threads are not there."""
    context = multiprocessing.get_context("fork")
    told = context.Event()
    with hearing() as heard:
        calls.tell("on_not_run", EVENT)
        assert heard.names() == ["on_not_run"]
        child = context.Process(target=_in_child, args=(told,))
        child.start()
        child.join(20)
    assert told.is_set()
    assert child.exitcode == 0


def test_hooks_that_work_are_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is logged for hooks that do as they should."""
    caplog.set_level(logging.DEBUG, "runonce.hooks")
    with hearing() as heard:
        calls.tell("on_not_run", EVENT)
        assert heard.names() == ["on_not_run"]
    assert caplog.records == []
