"""What each host does by itself: its grid, its errors, its end, and what is refused when it is defined."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from runonce import Tick, every
from runonce.errors import DefinitionError, HostStopping
from runonce.execution import ticking
from runonce.execution.stop import StopSignal
from runonce.hosts.local import LocalHost
from runonce.testing import Workbench
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable


class Ticking:
    """A function that is called on a clock whose waits pass at once, until it has been called so often."""

    def __init__(self, does: Callable[[int], object], times: int) -> None:
        self.clock, self.stop = PassingClock(), StopSignal()
        self.at: list[float] = []
        self._does, self._times = does, times

    def body(self) -> Any:
        """One call."""
        self.at.append(self.clock.elapsed())
        if len(self.at) == self._times:
            self.stop.set(HostStopping())
        return self._does(len(self.at))

    def run(self, interval: Any) -> list[float]:
        """When it was called."""

        @every(interval, name="refresh")
        def refresh() -> Any:
            return self.body()

        ticking.tick_on(refresh, self.clock, self.stop)
        return self.at


def test_ticks_are_on_the_grid_of_the_first(caplog: pytest.LogCaptureFixture) -> None:
    """However long a call takes within its interval, the next tick comes when it would have: there is no drift."""
    ticks = Ticking(lambda number: ticks.clock.advance(number * 4.0), 6)
    assert ticks.run("30s") == [0, 30, 60, 90, 120, 150]
    assert caplog.text == ""


def test_a_call_that_takes_long_leaves_out_the_ticks_it_meets(caplog: pytest.LogCaptureFixture) -> None:
    """Calls do not overlap and are not made up for; the log says how many were left out."""
    ticks = Ticking(lambda number: ticks.clock.advance(70.0 if number == 2 else 1.0), 4)
    assert ticks.run("30s") == [0, 30, 120, 150]
    assert "refresh took longer than its interval of 30 s: 2 of its ticks were left out" in caplog.text


def test_a_clock_that_wakes_early_makes_no_tick_more() -> None:
    """A wait that ends a moment too early is no tick of its own."""
    ticks = Ticking(lambda _: None, 4)
    wait = ticks.clock.wait
    ticks.clock.wait = lambda event, seconds: wait(event, seconds - 1e-6)  # type: ignore[method-assign]
    assert ticks.run(10) == pytest.approx([0, 10, 20, 30], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [ValueError("no prices"), SystemExit(3), KeyboardInterrupt(), HostStopping()]
)
def test_an_error_is_logged_by_name_and_ends_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a call raises, the next tick calls the function again."""

    def fail(number: int) -> None:
        if number == 1:
            raise error

    assert Ticking(fail, 3).run("1s") == [0, 1, 2]
    assert caplog.text.count("refresh failed") == 1
    assert type(error).__name__ in caplog.text


def test_work_that_nobody_has_done_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A call that returns a generator has done nothing, and the log says so."""
    Ticking(lambda _: (one for one in "ab"), 2).run("1s")
    assert "returned generator" in caplog.text


def serving(*functions: Any) -> tuple[StopSignal, list[threading.Thread]]:
    """The functions on a host that has just begun, by the real clock."""
    bench = Workbench()
    return bench.stop, ticking.start(functions, PassingClock(), bench.stop)


def ended(threads: list[threading.Thread]) -> bool:
    """Whether all end within some seconds."""
    for thread in threads:
        thread.join(20)
    return not any(thread.is_alive() for thread in threads)


def test_an_async_call_is_cancelled_when_its_host_stops(caplog: pytest.LogCaptureFixture) -> None:
    """It is told at once, wherever it waits, and its end is no error."""
    began, came = threading.Event(), []

    @every("1s")
    async def refresh(tick: Tick) -> None:
        assert not tick.stopping
        began.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            came.append(tick.stopping)
            raise

    stop, threads = serving(refresh)
    assert began.wait(20)
    stop.set(HostStopping())
    assert ended(threads)
    assert came == [True]
    assert "failed" not in caplog.text


def test_a_sync_call_is_told_when_its_host_stops(caplog: pytest.LogCaptureFixture) -> None:
    """`tick.check()` raises HostStopping, which ends the call and is no error."""
    began, name = threading.Event(), []

    @every("1s")
    def refresh(tick: Tick) -> None:
        name.append(tick.name)
        tick.log.warning("at work")
        began.set()
        while True:
            tick.check()

    stop, threads = serving(refresh)
    assert began.wait(20)
    stop.set(HostStopping())
    assert ended(threads)
    assert name == ["refresh"]
    assert "[refresh on this host #1] at work" in caplog.text
    assert "failed" not in caplog.text


def test_each_host_does_it_for_itself() -> None:
    """Two replicas call it at the same time."""
    met = threading.Barrier(3)

    @every("1h")
    def refresh() -> None:
        met.wait(20)

    hosts = [Workbench() for _ in range(2)]
    threads = [
        threading.Thread(target=LocalHost(bench.dispatcher, every=[refresh]).serve, daemon=True)
        for bench in hosts
    ]
    for thread in threads:
        thread.start()
    met.wait(20)
    for bench in hosts:
        bench.stop.set(HostStopping())
    assert ended(threads)


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [
        ("30s", 30),
        ("500ms", 0.5),
        ("1.5m", 90),
        ("1 h", 3600),
        ("24h", 86_400),
        (30, 30),
        (0.1, 0.1),
        (timedelta(minutes=5), 300),
    ],
)
def test_an_interval_is_a_number_with_its_unit(interval: Any, seconds: float) -> None:
    """Text with a unit, seconds or a timedelta."""

    @every(interval)
    def refresh() -> None:
        """Refresh."""

    assert (refresh.interval, refresh.name, refresh.summary) == (seconds, "refresh", "Refresh.")
    assert refresh() is None


@pytest.mark.parametrize(
    "interval",
    [
        *("", "30", "s", "30 sec", "-5s", "1d", "0s", "99ms", "25h", "1e3s", "٣s", b"30s"),
        *(0, -1, True, None, float("nan"), float("inf"), timedelta(0), timedelta(days=2)),
    ],
)
def test_a_bad_interval_is_refused(interval: Any) -> None:
    """One error names the function, the value and the remedy."""
    with pytest.raises(DefinitionError) as refused:

        @every(interval)
        def refresh() -> None:
            """Refresh."""

    said = str(refused.value)
    assert said.startswith(f"Job 'refresh': every({interval!r}) is no interval from 0.1 s to a day")
    assert '"30s"' in said


def test_what_cannot_be_called_so_is_refused() -> None:
    """Without its interval, with arguments nobody gives, with a `yield`, or with a name that is none."""

    def refresh() -> None: ...

    def two(tick: Tick, other: str) -> None: ...

    def named(*, region: str) -> None: ...

    def generating() -> Any:
        yield 1

    with pytest.raises(DefinitionError, match=r"write `@every\(\"30s\"\)` above the function 'refresh'"):
        every(refresh)  # type: ignore[arg-type]
    for wrong, what in (
        (two, r"write `def two\(\)`"),
        (named, r"write `def named\(\)`"),
        (generating, "yield"),
    ):
        with pytest.raises(DefinitionError, match=what):
            every("1s")(wrong)
    with pytest.raises(DefinitionError, match="Refresh it"):
        every("1s", name="Refresh it")(refresh)


def test_an_argument_with_a_default_is_its_own() -> None:
    """A function may have further arguments that nobody has to give."""
    seen: list[Any] = []

    @every("1s")
    def refresh(region: str = "eu") -> None:
        seen.append(region)

    assert not refresh.takes_tick
    refresh()
    assert seen == ["eu"]
