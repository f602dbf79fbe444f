from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from runonce import scheduled
from runonce.errors import DefinitionError
from runonce.execution.options import LONGEST_RETRY_DELAY, Retry
from runonce.runs.definition import ScheduledJob

NIGHTLY = "0 0 3 * * *"


def nightly_report(_: Any) -> None:
    """One report a night.

    And more that a list does not show.
    """


def test_a_decorated_function_becomes_a_definition() -> None:
    """The decorator gives a definition with the function's name and every documented default."""
    job = scheduled(NIGHTLY)(nightly_report)
    assert isinstance(job, ScheduledJob)
    assert (job.name, job.body, job.summary) == ("nightly_report", nightly_report, "One report a night.")
    assert (job.schedule.expression, job.schedule.time_zone) == (NIGHTLY, "UTC")
    assert (job.misfire, job.misfire_cap, job.on_abandoned) == ("latest", 24, "rerun")
    assert (job.retry, job.max_runtime) == (Retry(0, 60), 1800)


def test_every_option_lands_in_its_field() -> None:
    """Options are kept as given, durations in seconds whether they came as such or as a timedelta."""
    job = scheduled(
        "*/5 * * * *",
        name="other-name",
        time_zone="Europe/Istanbul",
        misfire="all",
        misfire_cap=3,
        retries=2,
        retry_delay=timedelta(minutes=5),
        max_runtime=timedelta(hours=1),
        on_abandoned="hold",
    )(nightly_report)
    assert (job.name, job.misfire, job.misfire_cap, job.on_abandoned) == ("other-name", "all", 3, "hold")
    assert (job.schedule.expression, job.schedule.time_zone) == ("0 */5 * * * *", "Europe/Istanbul")
    assert (job.retry, job.max_runtime) == (Retry(2, 300), 3600)


def test_a_definition_can_be_called_like_its_function() -> None:
    """A test of the job's logic calls it directly, with no lease and no claim."""
    seen = []

    @scheduled(NIGHTLY)
    def job(run: Any) -> None:
        seen.append(run)

    job("a run")  # type: ignore[arg-type]
    assert seen == ["a run"]


def test_an_async_function_is_known_as_one() -> None:
    """An async def is recognised, so that the host runs it on a loop."""

    @scheduled(NIGHTLY)
    async def job(run: Any) -> None:
        """Do nothing."""

    assert job.is_async
    assert not scheduled(NIGHTLY)(nightly_report).is_async


def test_a_definition_cannot_change() -> None:
    """A definition is frozen."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        scheduled(NIGHTLY)(nightly_report).name = "x"  # type: ignore[misc]


def test_no_limit_is_none() -> None:
    """max_runtime=None means no limit, not the default."""
    assert scheduled(NIGHTLY, max_runtime=None)(nightly_report).max_runtime is None


@pytest.mark.parametrize("name", ["a", "nightly", "nightly-report_2", "a" * 63, "hosts", "run-once"])
def test_a_name_is_accepted(name: str) -> None:
    """Names that fit a blob, a row and a Functions function are accepted."""
    assert scheduled(NIGHTLY, name=name)(nightly_report).name == name


@pytest.mark.parametrize(
    "name", ["", "A", "1a", "_a", "a b", "a/b", "a" * 64, "a\n", "ş", "host", "runonce_x", 5]
)
def test_a_name_is_refused(name: Any) -> None:
    """Names that fit one of them not, or are taken, are refused; the message shows the name and the remedy."""
    with pytest.raises(DefinitionError) as refused:
        scheduled(NIGHTLY, name=name)(nightly_report)
    assert f"Job {name!r}" in str(refused.value)
    assert 'name="…"' in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [
        lambda run: None,  # noqa: ARG005
        lambda run, more=1: None,  # noqa: ARG005
        lambda run, *args, **kwargs: None,  # noqa: ARG005
        lambda run, *, option=None: None,  # noqa: ARG005
    ],
    ids=["run", "a default", "anything", "an option"],
)
def test_one_argument_is_enough(body: Any) -> None:
    """A function that can be called with the run alone is accepted, whatever else it could take."""
    assert scheduled(NIGHTLY, name="x")(body).body is body


@pytest.mark.parametrize(
    "body",
    [
        lambda: None,
        lambda run, other: None,  # noqa: ARG005
        lambda *, run: None,  # noqa: ARG005
        lambda **run: None,  # noqa: ARG005
    ],
    ids=["none", "two", "keyword only", "only **"],
)
def test_any_other_parameters_are_refused(body: Any) -> None:
    """A function that cannot be called with the run alone is refused when it is defined, not when it is due."""
    with pytest.raises(DefinitionError, match="it is called with that one argument"):
        scheduled(NIGHTLY, name="x")(body)


def test_a_parameter_without_a_default_is_refused() -> None:
    """A timer has no value for it, so the job could never run."""

    def report(run: Any, *, region: str) -> None: ...

    with pytest.raises(DefinitionError, match=r"Job 'x'.*'region' has no default.*`region: str = …`"):
        scheduled(NIGHTLY, name="x")(report)


@pytest.mark.parametrize("failures", [1, 2, 3, 6, 7, 50, 5000])
def test_the_wait_doubles_up_to_an_hour(failures: int) -> None:
    """Each failure doubles the wait, which never exceeds an hour and a fifth however often a run failed."""
    retry = Retry(5, 60)
    middle = retry.wait(failures, spread=lambda: 0.5)
    assert middle == min(60 * 2 ** min(failures - 1, 30), LONGEST_RETRY_DELAY)
    assert retry.wait(failures, spread=lambda: 0.0) == pytest.approx(middle * 0.8)
    assert retry.wait(failures, spread=lambda: 1.0) == pytest.approx(middle * 1.2)


def test_the_wait_is_spread() -> None:
    """Two replicas that fail together do not come back together."""
    assert len({Retry(1, 60).wait(1) for _ in range(20)}) > 1


@pytest.mark.parametrize("policy", ["", "newest", "Latest", None, 1])
def test_an_unknown_policy_is_refused(policy: Any) -> None:
    """A policy that does not exist is refused with the job, the value and the ones that do."""
    with pytest.raises(DefinitionError, match=r"Job 'nightly'.*skip.*latest.*all") as refused:
        scheduled(NIGHTLY, name="nightly", misfire=policy)(nightly_report)
    assert repr(policy) in str(refused.value)


@pytest.mark.parametrize("cap", [0, -1, 101, True, 2.5, "3", None])
def test_a_cap_that_is_not_a_sensible_number_is_refused(cap: Any) -> None:
    """A cap outside its range is refused with the job, the value and the range."""
    with pytest.raises(DefinitionError, match=r"Job 'nightly'.*whole number from 1 to 100") as refused:
        scheduled(NIGHTLY, name="nightly", misfire_cap=cap)(nightly_report)
    assert repr(cap) in str(refused.value)


def test_a_job_may_say_how_long_its_history_is_kept() -> None:
    """Days, between one and ten years' worth; without them the setting counts."""
    assert scheduled(NIGHTLY)(nightly_report).history_days is None
    assert [scheduled(NIGHTLY, history_days=n)(nightly_report).history_days for n in (1, 3650)] == [1, 3650]


@pytest.mark.parametrize("days", [0, -1, 3651, True, 30.5, "30", timedelta(days=30)])
def test_a_history_that_cannot_be_kept_is_refused(days: Any) -> None:
    """What is not a whole number of days in its range is refused with the job, the value and the range."""
    with pytest.raises(
        DefinitionError, match=r"Job 'nightly'.*history_days.*whole number from 1 to 3650"
    ) as refused:
        scheduled(NIGHTLY, name="nightly", history_days=days)(nightly_report)
    assert repr(days) in str(refused.value)


def test_renewal_by_a_process_has_a_limit() -> None:
    """A thread renews unless the job says otherwise; a process stops after ten minutes without progress, or as said."""
    assert scheduled(NIGHTLY)(nightly_report).stall_after is None
    assert scheduled(NIGHTLY, renewal="process")(nightly_report).stall_after == 600
    assert (
        scheduled(NIGHTLY, renewal="process", stall_after=timedelta(minutes=1))(nightly_report).stall_after
        == 60
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"renewal": "fork"}, r"renewal='fork' is not one of \"thread\", \"process\""),
        ({"stall_after": 5}, r"stall_after=5 is for renewal=\"process\" only"),
        ({"renewal": "process", "stall_after": -1}, r"stall_after=-1"),
    ],
)
def test_a_renewal_that_cannot_work_is_refused(options: dict[str, Any], problem: str) -> None:
    """An unknown way, or a limit that nothing would heed, is refused with job and value."""
    with pytest.raises(DefinitionError, match=f"Job 'nightly'.*{problem}"):
        scheduled(NIGHTLY, name="nightly", **options)(nightly_report)
