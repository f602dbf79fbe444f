"""ping_url= and on_failure=, on a real server."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.flows import AFTER_LEASE, AFTER_REQUEST, at, die, replica, start, stop_at, work_off
from support.listener import HANG
from support.messages import delivery, handling, silence

from runonce.errors import DefinitionError, PermanentError
from runonce.execution import hooks
from runonce.notify.set_up import listen
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.recovery import recover
from runonce.testing import Workbench
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.listener import Listener

    from runonce.hooks import Incident
    from runonce.runs.run import Run

T = at(3)


@pytest.fixture
def made() -> Iterator[ExitStack]:
    """What `listen` adds goes with it."""
    with ExitStack() as stack:
        yield stack


def nightly(body: Callable[[Run], Any], **options: Any) -> ScheduledJob:
    def call(run: Run) -> None:
        body(run)

    return scheduled("0 0 3 * * *", name="nightly", **options)(call)


def bench_of(job: ScheduledJob, made: ExitStack) -> Workbench:
    """A bench at 03:00 whose job's pings and function are called."""
    listen("", {job.name: job}, {}, made)
    bench = Workbench(job, clock=PassingClock())
    bench.clock.advance(3 * 3600)
    return bench


def pinged(server: Listener) -> list[str]:
    """The paths pinged so far."""
    assert hooks.drain(20)
    return server.paths


def raising(error: BaseException) -> Callable[[Run], None]:
    def body(_: Run) -> None:
        raise error

    return body


def test_a_run_pings_its_start_and_its_success(server: Listener, made: ExitStack) -> None:
    """URL/start, then URL, both with one rid; another run has another."""
    job = nightly(lambda _: None, ping_url=f"{server.url}/ping/u")
    bench = bench_of(job, made)
    bench.dispatcher.tick(job)
    assert pinged(server) == ["/ping/u/start", "/ping/u"]
    bench.clock.advance(24 * 3600)
    bench.dispatcher.tick(job)
    assert len(pinged(server)) == 4
    rids = [parse_qs(urlsplit(request.path).query)["rid"] for request in server.requests]
    assert rids[0] == rids[1] != rids[2] == rids[3]


def test_a_failure_for_good_pings_fail_with_its_reason(server: Listener, made: ExitStack) -> None:
    """URL/fail comes when no retry is left, and the attempts before ping their starts alone."""
    job = nightly(raising(ValueError("no rates")), ping_url=server.url, retries=1, retry_delay=1)
    bench = bench_of(job, made)
    bench.dispatcher.tick(job)
    assert pinged(server) == ["/start"]
    bench.clock.advance(AFTER_REQUEST)
    recover(bench.dispatcher)
    work_off(bench.dispatcher)
    assert pinged(server) == ["/start", "/start", "/fail"]
    assert server.requests[-1].body == b"ValueError: no rates"
    assert len({urlsplit(request.path).query for request in server.requests}) == 1


def test_a_run_that_is_stopped_pings_no_end(server: Listener, made: ExitStack) -> None:
    """It goes on elsewhere, and that run pings its own start and end."""
    job = nightly(stop_at, ping_url=server.url)
    bench = bench_of(job, made)
    bench.dispatcher.tick(job)
    assert pinged(server) == ["/start"]


def test_a_job_whose_hosts_die_pings_fail(server: Listener, made: ExitStack) -> None:
    """on_abandoned="hold": nobody runs it to its end, so whoever records that pings."""
    job = nightly(lambda _: None, ping_url=server.url, on_abandoned="hold")
    bench = bench_of(job, made)
    die(start(bench.dispatcher, job, T))
    bench.clock.advance(AFTER_LEASE)
    replica(bench).execute(job, T, by="request")
    assert pinged(server) == ["/start", "/fail"]


def test_a_server_that_hangs_or_fails_holds_up_no_run(
    server: Listener, made: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run begins and ends at once all the same."""
    for seconds in ("notify.post.ANSWER", "notify.post.LONGEST", "execution.hooks.PATIENCE"):
        monkeypatch.setattr(f"runonce.{seconds}", 20.0)
    server.always = HANG
    job = nightly(lambda _: None, ping_url=server.url)
    bench = bench_of(job, made)
    began = time.monotonic()
    assert bench.dispatcher.execute(job, T, by="timer").ran
    assert time.monotonic() - began < 10
    server.release.set()


def test_a_setting_has_the_url(server: Listener, made: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL is a secret, so a setting can have it; where that is not set nobody is pinged."""
    monkeypatch.setenv("NIGHTLY_PING", f"{server.url}/u")
    job = nightly(lambda _: None, ping_url="%NIGHTLY_PING%")
    bench_of(job, made).dispatcher.tick(job)
    assert pinged(server) == ["/u/start", "/u"]
    monkeypatch.delenv("NIGHTLY_PING")
    assert nightly(lambda _: None, ping_url="%NIGHTLY_PING%").ping_url == ""


SECRET = "T0K3N"


@pytest.mark.parametrize(
    "url",
    [f"hc-ping.com/{SECRET}", f"ftp://hc/{SECRET}", f"https:///{SECRET}", f"https://h:x/{SECRET}", 7, ""],
)
def test_what_is_no_url_is_refused_without_repeating_it(url: Any) -> None:
    """One error that names the job and the option, and not the value, which is mostly a secret with a typing error."""
    with pytest.raises(DefinitionError, match="Job 'nightly': ping_url= is not a URL") as caught:
        nightly(lambda _: None, ping_url=url)
    assert SECRET not in str(caught.value)


def test_what_a_setting_has_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the setting."""
    monkeypatch.setenv("NIGHTLY_PING", f"hc-ping.com/{SECRET}")
    with pytest.raises(DefinitionError, match="ping_url=%NIGHTLY_PING% is not a URL") as caught:
        nightly(lambda _: None, ping_url="%NIGHTLY_PING%")
    assert SECRET not in str(caught.value)


def test_a_url_is_in_no_picture_of_the_job(server: Listener) -> None:
    """What prints a definition does not print the secret."""
    assert server.url not in repr(nightly(lambda _: None, ping_url=server.url))


# -- on_failure ---------------------------------------------------------------------------------------------


def test_a_function_of_ones_own_is_called_for_each_failure(made: ExitStack) -> None:
    """on_failure= is given the incident of each run that fails for good, not of retries and successes."""
    told: list[Incident] = []
    errors: list[BaseException | None] = [PermanentError("a"), PermanentError("b"), None]

    def body(_: Run) -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    job = nightly(body, on_failure=told.append)
    bench = bench_of(job, made)
    for _ in range(3):
        bench.dispatcher.tick(job)
        bench.clock.advance(24 * 3600)
    assert hooks.drain(10)
    assert [(one.kind, one.reason, one.first) for one in told] == [
        ("failed", "PermanentError: a", True),
        ("failed", "PermanentError: b", False),
    ]


def test_a_handlers_function_is_called_for_its_dead_letters(made: ExitStack) -> None:
    """The same for messages; one that raises is logged and hurts nothing."""
    told: list[str] = []

    def tell(incident: Incident) -> None:
        told.append(incident.message_id)
        raise RuntimeError("the pager is off")

    def body(_: Any) -> None:
        raise PermanentError("no")

    one = handling(body, on_failure=tell)
    listen("", {}, {one.name: one}, made)
    bench = Workbench(clock=PassingClock())
    silence(bench.deliverer)
    for number in range(2):
        bench.deliverer.deliver(one, delivery({"id": str(number)}, message_id=f"m-{number}"))
    assert hooks.drain(10)
    assert told == ["m-0", "m-1"]


async def later(_: Any) -> None:
    """An async function."""


@pytest.mark.parametrize("wrong", ["tell", 7, later], ids=["a text", "a number", "async"])
@pytest.mark.parametrize("make", [nightly, handling])
def test_what_cannot_be_called_is_refused(wrong: Any, make: Any) -> None:
    """One error that names the job or handler, the value and the remedy."""
    with pytest.raises(DefinitionError, match=r"on_failure=.* must be a plain def of the incident"):
        make(lambda _: None, on_failure=wrong)
