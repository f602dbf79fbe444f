"""A job's parameters: read by their types, part of which run it is, refused with the names that exist."""

from __future__ import annotations

import enum
import math
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Literal

import pytest
from support.flows import AFTER_LEASE, at, die, has_run_row, job_row, recovered, replica, work_off

from runonce.errors import DefinitionError, InputError
from runonce.runs.decide import Which, cancel, mark, replay
from runonce.runs.definition import scheduled
from runonce.runs.dispatch import Started
from runonce.runs.operate import ask
from runonce.runs.parameters import LONGEST, parameters_of
from runonce.runs.rows import Outcome
from runonce.runs.status import history
from runonce.testing import Workbench

if TYPE_CHECKING:
    from runonce.runs.run import Run

    class ForTypeCheckersOnly: ...


T = at(3)
Mode = Literal["full", "delta"]


def bench_of(*, retries: int = 0) -> tuple[Workbench, Any, list[tuple[str, int, str]]]:
    """A bench three hours on, a job with two parameters, and what it was called with."""
    seen: list[tuple[str, int, str]] = []

    @scheduled("0 0 3 * * *", retries=retries)
    def report(run: Run, *, region: str = "eu", pages: int = 1) -> None:
        seen.append((region, pages, run.idempotency_key))
        if pages == 13:
            raise OSError

    bench = Workbench(report)
    bench.clock.advance(3 * 3600)
    return bench, report, seen


def test_a_run_with_parameters_is_a_run_of_its_own() -> None:
    """The schedule's run, and one for each set of parameters: own row, own key, each done once."""
    bench, report, seen = bench_of()
    host = bench.dispatcher
    assert host.execute(report, T, by="timer").outcome is Outcome.SUCCEEDED
    for given in ({"region": "us"}, {"region": "us", "pages": "2"}, {"pages": 2, "region": "us"}):
        host.execute(report, T, by="hand", params=report.params(given))
    assert [call[:2] for call in seen] == [("eu", 1), ("us", 1), ("us", 2)]
    assert len({key for *_, key in seen}) == 3
    rows = [row.params for row in history(host, "report", 10)]
    assert sorted(rows) == ["", '{"pages":2,"region":"us"}', '{"region":"us"}']


def test_a_default_that_is_named_is_the_schedules_own_run() -> None:
    """What the function would have taken anyway makes no second run of it."""
    bench, report, seen = bench_of()
    bench.dispatcher.execute(report, T, by="timer")
    again = bench.dispatcher.execute(report, T, by="hand", params=report.params({"region": "eu"}))
    assert again.reason.startswith("already succeeded")
    assert len(seen) == 1


class Colour(enum.StrEnum):
    """As a default may be written."""

    RED = "red"


def of_all_defaults(
    run: Run, *, rate: float = 10, pages: int | None = None, colour: str = Colour.RED, limit: float = math.inf
) -> None: ...


@pytest.mark.parametrize(
    "given",
    [{"rate": "10"}, {"rate": 10}, {"pages": None}, {"colour": "red"}, {"colour": Colour.RED}],
    ids=str,
)
def test_a_default_is_known_however_it_is_written(given: dict[str, Any]) -> None:
    """A whole number for a float, None, a member of an enumeration: the value counts, and not how it is written."""
    assert scheduled("0 0 3 * * *", name="one")(of_all_defaults).params(given) == ""


def test_a_zero_is_one_zero() -> None:
    """A minus before a zero makes no other run of it."""
    job = scheduled("0 0 3 * * *", name="one")(of_all_defaults)
    assert job.params({"rate": "-0"}) == job.params({"rate": 0}) == '{"rate":0.0}'


def test_parameters_survive_a_death_and_a_retry() -> None:
    """A run that was asked for with parameters is taken over and tried again with them."""
    bench, report, seen = bench_of(retries=2)
    bench.dispatcher.execute(report, T, by="timer")
    started = bench.dispatcher.begin(report, T, by="hand", params=report.params({"pages": 13}))
    assert isinstance(started, Started)
    die(started)
    bench.clock.advance(AFTER_LEASE)
    recovered(replica(bench), bench.clock, rounds=8)
    assert [call[:2] for call in seen] == [("eu", 1)] + [("eu", 13)] * 3
    assert len({key for *_, key in seen[1:]}) == 1
    assert history(bench.dispatcher, "report", 5)[1].outcome is Outcome.FAILED
    assert job_row(bench, report).pending == {}


def test_a_host_is_asked_for_a_run_with_parameters() -> None:
    """The parameters are on the job's row, so that any host that takes the request has them."""
    bench, report, seen = bench_of()
    bench.dispatcher.execute(report, T, by="timer")
    ask(bench.dispatcher, report, T, report.params({"region": "us"}))
    assert [result.outcome for result in work_off(replica(bench))] == [Outcome.SUCCEEDED]
    assert [call[:2] for call in seen] == [("eu", 1), ("us", 1)]


def test_the_schedules_own_run_comes_first() -> None:
    """A run with parameters for a fire time that is still due does not stand in its way."""
    bench, report, seen = bench_of()
    bench.dispatcher.execute(report, at(3, day=1), by="timer")
    bench.clock.advance(24 * 3600)
    params = report.params({"region": "us"})
    refused = bench.dispatcher.execute(report, at(3, day=2), by="hand", params=params)
    assert "has not begun" in refused.reason
    with pytest.raises(InputError, match="has not begun"):
        ask(bench.dispatcher, report, at(3, day=2), params)
    assert bench.run(report, at(3, day=2)).outcome is Outcome.SUCCEEDED
    assert bench.dispatcher.execute(report, at(3, day=2), by="hand", params=params).ran
    assert [call[0] for call in seen] == ["eu", "eu", "us"]


def ended(bench: Workbench, report: Any) -> None:
    """A healthy host goes on until nothing is left."""
    recovered(replica(bench), bench.clock, rounds=12)
    row = job_row(bench, report)
    assert (row.pending, row.more) == ({}, 0)


def test_a_fire_time_is_asked_for_with_several_sets_of_parameters() -> None:
    """Each is a run of its own: none is refused, none is lost, and they run one after the other."""
    bench, report, seen = bench_of()
    bench.dispatcher.execute(report, T, by="timer")
    for region in ("us", "asia", "africa", "us"):
        ask(bench.dispatcher, report, T, report.params({"region": region}))
    ended(bench, report)
    assert sorted(call[0] for call in seen) == ["africa", "asia", "eu", "us"]
    assert {run.outcome for run in history(bench.dispatcher, "report", 10)} == {Outcome.SUCCEEDED}


def test_a_run_by_hand_does_not_wait_for_one_with_other_parameters() -> None:
    """While one waits for its retry another set runs at once, and the first comes to its own end, none of it mixed."""
    bench, report, seen = bench_of(retries=2)
    bench.dispatcher.execute(report, T, by="timer")
    failing = report.params({"pages": 13})
    assert bench.dispatcher.execute(report, T, by="hand", params=failing).outcome is Outcome.RETRYING
    us = bench.dispatcher.execute(report, T, by="hand", params=report.params({"region": "us"}))
    assert us.outcome is Outcome.SUCCEEDED
    assert us.attempt == 1
    ended(bench, report)
    assert [call[:2] for call in seen] == [("eu", 1), ("eu", 13), ("us", 1), ("eu", 13), ("eu", 13)]
    assert {run.params: str(run.outcome) for run in history(bench.dispatcher, "report", 10)} == {
        "": "succeeded",
        '{"region":"us"}': "succeeded",
        failing: "failed",
    }


def test_the_schedules_own_run_waits_for_its_retry_beside_one_with_parameters() -> None:
    """The timer's run failed and waits; one by hand with parameters runs meanwhile, and the retry comes as ever."""
    failed: list[int] = []

    @scheduled("0 0 3 * * *", retries=2)
    def report(run: Run, *, region: str = "eu") -> None:
        if region == "eu":
            failed.append(run.attempt)
            if run.attempt < 3:
                raise OSError

    bench = Workbench(report)
    bench.clock.advance(3 * 3600)
    assert bench.run(report, T).outcome is Outcome.RETRYING
    us = bench.dispatcher.execute(report, T, by="hand", params=report.params({"region": "us"}))
    assert us.outcome is Outcome.SUCCEEDED
    ended(bench, report)
    assert failed == [1, 2, 3]


def test_one_that_died_makes_room_for_another_set_of_parameters() -> None:
    """Asked for while the first runs, and after its host has died: both end, each from what it had kept."""
    bench, report, seen = bench_of(retries=1)
    bench.dispatcher.execute(report, T, by="timer")
    started = bench.dispatcher.begin(report, T, by="hand", params=report.params({"region": "us"}))
    assert isinstance(started, Started)
    ask(bench.dispatcher, report, T, report.params({"region": "asia"}))
    assert job_row(bench, report).running == T
    die(started)
    bench.clock.advance(AFTER_LEASE)
    africa = bench.dispatcher.execute(report, T, by="hand", params=report.params({"region": "africa"}))
    assert africa.outcome is Outcome.SUCCEEDED
    ended(bench, report)
    assert sorted(call[0] for call in seen) == ["africa", "asia", "eu", "us"]
    abandoned = {run.params: run.abandoned for run in history(bench.dispatcher, "report", 10)}
    assert abandoned['{"region":"us"}'] == 1


def test_a_decision_about_one_set_of_parameters_leaves_the_others_alone() -> None:
    """Marked, cancelled or replayed while another set waits for its retry: that one still comes to its end."""
    bench, report, seen = bench_of(retries=1)
    bench.dispatcher.execute(report, T, by="timer")
    us, failing = report.params({"region": "us"}), report.params({"pages": 13})
    bench.dispatcher.execute(report, T, by="hand", params=us)
    assert bench.dispatcher.execute(report, T, by="hand", params=failing).outcome is Outcome.RETRYING
    replay(bench.dispatcher, Which("report", T, us))
    mark(bench.dispatcher, Which("report", T, report.params({"region": "asia"}), why="done by hand"), "done")
    ended(bench, report)
    assert sorted(call[:2] for call in seen) == [("eu", 1), ("eu", 13), ("eu", 13), ("us", 1), ("us", 1)]
    assert len({key for region, _, key in seen if region == "us"}) == 2


@pytest.mark.parametrize("replays", [False, True])
def test_what_made_room_for_another_set_of_parameters_can_be_cancelled(replays: bool) -> None:
    """One that was asked for, or is to be replayed, ends for good although its row is beside the job's by then."""
    bench, report, seen = bench_of()
    host = bench.dispatcher
    host.execute(report, T, by="timer")
    us, asia = (report.params({"region": region}) for region in ("us", "asia"))
    if replays:
        host.execute(report, T, by="hand", params=us)
        replay(host, Which("report", T, us))
    else:
        ask(host, report, T, us)
    ask(host, report, T, asia)
    assert job_row(bench, report).more == 1
    cancel(host, Which("report", T, us, why="by mistake"))
    ended(bench, report)
    assert [call[0] for call in seen] == (["eu", "us", "asia"] if replays else ["eu", "asia"])
    outcomes = {run.params: run.outcome for run in history(host, "report", 10)}
    assert outcomes[us] is Outcome.CANCELLED


def test_parameters_that_do_not_fit_any_more_fail_the_run() -> None:
    """A deployment that renamed a parameter cannot run what was asked for with the old name; the record says so."""
    bench, report, _ = bench_of()
    bench.dispatcher.execute(report, T, by="timer")
    ask(bench.dispatcher, report, T, report.params({"region": "us"}))

    @scheduled("0 0 3 * * *", name="report")
    def newer(run: Run, *, area: str = "eu") -> None: ...

    (result,) = work_off(replica(bench, newer))
    assert result.outcome is Outcome.FAILED
    assert "no parameter 'region'" in result.reason
    assert "area: str = 'eu'" in result.reason
    assert has_run_row(bench, report, T)


def every_kind(
    run: Run,
    *,
    text: str = "a",
    whole: int = 1,
    number: float = 0.5,
    truth: bool = False,
    day: date = date(2026, 1, 1),
    instant: datetime = datetime(2026, 1, 1, tzinfo=UTC),
    mode: Mode = "full",
    maybe: str | None = None,
    plain=7,  # noqa: ANN001 - typed by its default
) -> None: ...


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "çay ☕", "çay ☕"),
        ("whole", "12", 12),
        ("number", "2", 2.0),
        ("truth", "true", True),
        ("day", "2026-11-29", date(2026, 11, 29)),
        ("instant", "2026-11-29T03:00:00+03:00", datetime(2026, 11, 29, tzinfo=UTC)),
        ("mode", "delta", "delta"),
        ("maybe", "x", "x"),
        ("plain", "8", 8),
    ],
)
def test_each_type_is_read_from_text_and_comes_back(name: str, text: str, value: Any) -> None:
    """A text from the command line and a value from Python are one run, and the function gets the value."""
    job = scheduled("0 0 3 * * *")(every_kind)
    params = job.params({name: text})
    assert params == job.params({name: value})
    assert params
    seen: dict[str, Any] = {}
    called = scheduled("0 0 3 * * *", name="x")(every_kind)
    object.__setattr__(called, "body", lambda _, **given: seen.update(given))
    called.with_params(params)(None)  # type: ignore[arg-type]
    assert seen == {name: value}
    assert type(seen[name]) is type(value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"regoin": "us"}, r"no parameter 'regoin'.*text: str = 'a'; whole: int = 1"),
        ({"whole": "1.5"}, r"whole='1.5' does not fit `whole: int = 1`"),
        ({"whole": True}, r"it is a bool"),
        ({"number": "nan"}, r"no finite number"),
        ({"truth": "yes"}, r"write true or false"),
        ({"day": "29.11.2026"}, r"day='29.11.2026'"),
        ({"instant": "2026-11-29"}, r"no offset"),
        ({"mode": "all"}, r"one of 'full', 'delta'"),
        ({"text": 5}, r"it is a int"),
        ({"text": "\ud800"}, r"does not fit"),
        ({"text": "x" * LONGEST}, rf"over {LONGEST}; put the data in a blob"),
        ({"whole": "9" * 5000}, r"does not fit"),
        ({"whole": 10**5000}, r"too long to be written does not fit"),
        ({"number": 10**400}, r"does not fit"),
        ({"instant": "0001-01-01T00:00:00+14:00"}, r"does not fit"),
    ],
    ids=range(15),
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], problem: str) -> None:
    """The error names the job, the value, and what would do."""
    job = scheduled("0 0 3 * * *")(every_kind)
    with pytest.raises(InputError, match=rf"^Job every_kind: .*{problem}"):
        job.params(given)


def test_a_parameter_of_another_type_is_refused_when_defined() -> None:
    """A type that no text can be read as, or that exists for type checkers only, is an error of the definition."""

    def with_list(run: Run, *, regions: list[str] = []) -> None: ...  # noqa: B006

    def hidden(run: Run, *, what: ForTypeCheckersOnly | None = None) -> None: ...

    for body, name in ((with_list, "regions"), (hidden, "what")):
        with pytest.raises(DefinitionError, match=rf"Job 'x': its parameter `{name}.*can only be str, int"):
            parameters_of("x", body)
