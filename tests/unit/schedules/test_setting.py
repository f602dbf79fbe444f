from __future__ import annotations

import pytest

from runonce import scheduled
from runonce.errors import ScheduleError
from runonce.schedules.schedule import Schedule
from runonce.schedules.setting import FromSetting, read_schedule

ISTANBUL = "Europe/Istanbul"
NIGHTLY = "0 0 3 * * *"


@pytest.mark.parametrize(
    ("text", "environ", "expression"),
    [
        ("%NIGHTLY_SCHEDULE%", {"NIGHTLY_SCHEDULE": " 0 30 4 * * * "}, "0 30 4 * * *"),
        ("%NIGHTLY_SCHEDULE%", {"NIGHTLY_SCHEDULE": "30 4 * * *"}, "0 30 4 * * *"),
        (" %Schedules:Nightly% ", {"Schedules__Nightly": "0 30 4 * * *"}, "0 30 4 * * *"),
    ],
)
def test_a_schedule_is_taken_from_its_setting(text: str, environ: dict[str, str], expression: str) -> None:
    """The setting's expression is read as one in the code, in the job's time zone, by the name the host knows it by."""
    schedule, origin = read_schedule(text, NIGHTLY, ISTANBUL, environ, "report")
    assert schedule == Schedule.parse(expression, ISTANBUL)
    assert origin == FromSetting(text.strip().strip("%"), Schedule.parse(NIGHTLY, ISTANBUL), is_set=True)


@pytest.mark.parametrize("environ", [{}, {"NIGHTLY_SCHEDULE": ""}, {"NIGHTLY_SCHEDULE": " "}])
def test_a_setting_that_is_not_set_has_its_default(environ: dict[str, str]) -> None:
    """Templates pass an empty text for what nobody set; it counts as not set."""
    schedule, origin = read_schedule("%NIGHTLY_SCHEDULE%", NIGHTLY, ISTANBUL, environ, "report")
    assert (schedule, str(origin)) == (Schedule.parse(NIGHTLY, ISTANBUL), "the default of NIGHTLY_SCHEDULE")


@pytest.mark.parametrize(
    ("text", "default", "environ", "said"),
    [
        (
            "%NIGHTLY%",
            None,
            {},
            "Job 'report': its schedule is the setting NIGHTLY, which is not set: set it",
        ),
        ("%NIGHTLY%", None, {"NIGHTLY": " "}, "the setting NIGHTLY, which is not set"),
        (
            "%NIGHTLY%",
            NIGHTLY,
            {"NIGHTLY": "0 0 3"},
            "Job 'report': the setting NIGHTLY='0 0 3' is not its schedule",
        ),
        ("%NIGHTLY%", NIGHTLY, {"NIGHTLY": "%OTHER%"}, "the setting NIGHTLY='%OTHER%' is not its schedule"),
        ("%NIGHTLY%", "0 0 3", {"NIGHTLY": NIGHTLY}, "Job 'report': schedule '0 0 3' has 3 fields"),
        (NIGHTLY, NIGHTLY, {}, "Job 'report': default='0 0 3 * * *' is for a schedule that a setting gives"),
    ],
)
def test_a_missing_or_bad_one_is_named(
    text: str, default: str | None, environ: dict[str, str], said: str
) -> None:
    """The error names the job, the setting, its value and the remedy; a bad default is found though it is not used."""
    with pytest.raises(ScheduleError) as caught:
        read_schedule(text, default, "UTC", environ, "report")
    assert said in str(caught.value)


def test_the_decorator_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's schedule is its setting's when its file is imported, and the definition says where it comes from."""

    def report(run: object) -> None: ...

    monkeypatch.setenv("NIGHTLY_SCHEDULE", "0 0 4 * * *")
    job = scheduled("%NIGHTLY_SCHEDULE%", default=NIGHTLY)(report)
    assert (job.schedule.expression, str(job.setting)) == ("0 0 4 * * *", "from NIGHTLY_SCHEDULE")
    assert scheduled(NIGHTLY)(report).setting is None
