from __future__ import annotations

import pytest

from runonce.errors import ScheduleError
from runonce.schedules import ncrontab
from runonce.schedules.schedule import Schedule

ALL = {kind.name: set(kind.every) for kind in ncrontab.KINDS}

GOOD = [
    ("0 0 3 * * *", "hour", {3}),
    ("0 */20 * * * *", "minute", {0, 20, 40}),
    ("0 5/15 * * * *", "minute", {5, 20, 35, 50}),
    ("0 10-20/5 * * * *", "minute", {10, 15, 20}),
    ("0 7 1-3,9,22-23 * * *", "hour", {1, 2, 3, 9, 22, 23}),
    ("0 0 0 */10 * *", "day", {1, 11, 21, 31}),
    ("0 0 0 1 jan,DEC *", "month", {1, 12}),
    ("0 0 0 1 February-apr *", "month", {2, 3, 4}),
    ("0 0 0 * * mon-5", "weekday", {1, 2, 3, 4, 5}),
    ("0 0 0 * * Sunday,SAT", "weekday", {0, 6}),
    ("0 0 0 1 JANUARY,sept *", "month", {1, 9}),
    ("0 0 0 1 Januar,Ju,M,d *", "month", {1, 6, 3, 12}),
    ("0 0 0 * * Mond-Thurs", "weekday", {1, 2, 3, 4}),
    ("0 0 0 * * s,t,tH", "weekday", {0, 2, 4}),
    ("0 0 0 29 2 *", "day", {29}),
    ("00 07 03 09 01 *", "hour", {3}),
]

FIELDS = "second minute hour day-of-month month day-of-week"
BAD = [
    ("@daily", 'Write "0 0 0 * * *"'),
    ("@Hourly", 'Write "0 0 * * * *"'),
    ("@reboot", FIELDS),
    ("", "Write six fields"),
    ("   ", "Write six fields"),
    ("* * * *", FIELDS),
    ("0 0 3 * * * *", FIELDS),
    ("00:05:00", FIELDS),
    ("0 0 0 L * *", "number from 1 to 31"),
    ("0 0 0 15W * *", "number from 1 to 31"),
    ("0 0 0 ? * *", "Use `*`"),
    ("0 0 0 * * 1#2", "number from 0 to 6"),
    ("0 0 0 * * 7", "Use 0 for Sunday"),
    ("0 0 0 * * 5-7", "Use 0 for Sunday"),
    ("0 0 0 * * 8", "number from 0 to 6"),
    ("0 */70 * * * *", "step within"),
    ("0 */60 * * * *", "step within"),
    ("0 */0 * * * *", "step within"),
    ("0 */ * * * *", "step within"),
    ("0 */5/2 * * * *", "step within"),
    ("0 */-5 * * * *", "step within"),
    ("60 0 0 * * *", "number from 0 to 59"),
    ("0 60 0 * * *", "number from 0 to 59"),
    ("0 0 24 * * *", "number from 0 to 23"),
    ("0 0 0 0 * *", "number from 1 to 31"),
    ("0 0 0 32 * *", "number from 1 to 31"),
    ("0 0 0 * 13 *", "number from 1 to 12"),
    ("0 0 0 * 0 *", "number from 1 to 12"),
    ("0 0 99999999999999999999999 * * *", "number from 0 to 23"),
    ("0 0 17-5 * * *", 'Write "17-23,0-5"'),
    ("0 0 0 * * fri-mon", 'Write "5-6,0-1"'),
    ("0 0 -3 * * *", "number from 0 to 23"),
    ("0 0 1-2-3 * * *", "number from 0 to 23"),
    ("0 0 3- * * *", "number from 0 to 23"),
    ("0 0,,30 * * * *", "extra comma"),
    ("0 0, * * * *", "extra comma"),
    ("0 0 0 * mo *", "English name"),
    ("0 0 0 * Januari *", "English name"),
    ("0 0 0 * Maerz *", "English name"),
    ("0 0 0 * jan. *", "English name"),
    ("0 0 mon * * *", "number from 0 to 23"),
    ("0 0 0 * * mondays", "English name"),
    ("0 0 0 * * -mon", "English name"),
    ("0 0 0 *5 * *", "number from 1 to 31"),
    ("0 0 \u0663 * * *", "plain ASCII"),
    ("0 0\u00a03 * * *", "plain ASCII"),
    ("0 0 3 * * *\n", "on one line"),
    ("0 0 3 * *\n*", "on one line"),
    ("0 0 3 * * *\0", "plain ASCII"),
    ("0 0 0 30 2 *", "Choose a day that the month has"),
    ("0 0 0 30 feb mon", "Choose a day that the month has"),
    ("0 0 0 31 4,6,9,11 *", "Choose a day that the month has"),
    ("0 0 1.5 * * *", "number from 0 to 23"),
    ("%SCHEDULE%", FIELDS),
    (None, "Write six fields"),
    (300, "Write six fields"),
    (b"0 0 3 * * *", "Write six fields"),
    (["0 0 3 * * *"], "Write six fields"),
]


@pytest.mark.parametrize(("expression", "field", "values"), GOOD)
def test_every_form_of_a_field_is_read(expression: str, field: str, values: set[int]) -> None:
    """Numbers, lists, ranges, steps and names in any case give the values they say."""
    assert getattr(Schedule.parse(expression).fields, field) == values


def test_a_star_admits_every_value() -> None:
    """Six stars admit every value of every field."""
    assert [set(values) for values in Schedule.parse("* * * * * *").fields.values] == list(ALL.values())


@pytest.mark.parametrize(("expression", "remedy"), BAD)
def test_a_bad_expression_is_refused_with_job_value_and_remedy(expression: str, remedy: str) -> None:
    """What the hosts could not run is refused at once, saying whose it is, what it is and what to write."""
    with pytest.raises(ScheduleError) as refused:
        Schedule.parse(expression, job="nightly")
    message = str(refused.value)
    assert "Job 'nightly'" in message
    assert repr(expression) in message
    assert remedy in message


def test_the_refusal_names_the_field_and_the_item() -> None:
    """In a long expression the message points at the one item that is wrong."""
    with pytest.raises(ScheduleError, match=r"its day-of-week '9' is out of range"):
        Schedule.parse("0 0 3 * * 1,9")


def test_without_a_job_the_message_starts_with_the_schedule() -> None:
    """A schedule checked on its own is refused without naming a job."""
    with pytest.raises(ScheduleError, match=r"^schedule '0 0 25 \* \* \*'"):
        Schedule.parse("0 0 25 * * *")


@pytest.mark.parametrize(
    ("time_zone", "remedy"),
    [
        ("Europe/Instanbul", 'Did you mean "Europe/Istanbul"?'),
        ("america/new_york", 'Did you mean "America/New_York"?'),
        ("etc/gmt+5", 'Did you mean "Etc/GMT+5"?'),
        ("utc", 'Did you mean "UTC"?'),
        ("Turkey Standard Time", 'IANA name "Europe/Istanbul"'),
        ("E. Europe Standard Time", 'IANA name "Europe/Chisinau"'),
        ("e. europe  standard time", 'IANA name "Europe/Chisinau"'),
        ("UTC-02", 'IANA name "Etc/GMT+2"'),
        ("utc", "UTC"),
        ("europe/istanbul", '"Europe/Istanbul"'),
        ("right/Europe/Istanbul", "Europe/Istanbul"),
        (["UTC"], "IANA name"),
        ("", "IANA name"),
        ("../etc/passwd", "IANA name"),
        ("localtime", "IANA name"),
        ("America", "IANA name"),
        ("UTC+3", "IANA name"),
        (None, "IANA name"),
        (3, "IANA name"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_a_suggestion(time_zone: str, remedy: str) -> None:
    """A zone this machine does not know is refused, and the nearest name offered."""
    with pytest.raises(ScheduleError) as refused:
        Schedule.parse("0 0 3 * * *", time_zone, job="nightly")
    message = str(refused.value)
    assert "Job 'nightly'" in message
    assert repr(time_zone) in message
    assert remedy in message


def test_five_fields_mean_second_zero() -> None:
    """A five-field expression is the same schedule as the six-field one with second 0."""
    assert Schedule.parse("30 3 * * *") == Schedule.parse("0 30 3 * * *")


def test_the_expression_is_kept_as_written_with_single_spaces() -> None:
    """Names stay names; only the spaces between fields are made even."""
    assert Schedule.parse("  0  30\t3 * Jan   Mon-fri ").expression == "0 30 3 * Jan Mon-fri"


@pytest.mark.parametrize(
    ("expression", "is_interval"),
    [("0 */5 * * * *", True), ("0 0 0-23 * * *", True), ("0 0 */2 * * *", False), ("0 0 1-23 * * *", False)],
)
def test_only_a_schedule_of_every_hour_is_an_interval(expression: str, *, is_interval: bool) -> None:
    """The hour field decides, by its values and not by how it is written."""
    assert Schedule.parse(expression).is_interval is is_interval


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        (range(60), 1, "*"),
        (range(0, 60, 5), 1, "*/5"),
        (range(10, 51, 20), 1, "10-50/20"),
        (range(0, 21, 10), 1, "0-20/10"),
        (range(15, 60, 15), 1, "15-45/15"),
        ({0, 30}, 1, "0,30"),
        ({1, 2, 3, 7, 10, 11}, 2, "1-3,7,10,11"),
        ({5}, 5, "5"),
    ],
)
def test_values_are_written_in_the_shortest_plain_way(values: set[int], kind: int, text: str) -> None:
    """Stars, steps and ranges are used where they say the same in less."""
    assert ncrontab.compact(values, ncrontab.KINDS[kind]) == text
