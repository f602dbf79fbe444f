from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runonce.cli import times

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-11-29T03:00:00Z", "2026-11-29T03:00:00+00:00"),
        ("2026-11-29T03:00+03:00", "2026-11-29T00:00:00+00:00"),
        ("2026-11-29 03:00:00.9-05:00", "2026-11-29T08:00:00+00:00"),
    ],
)
def test_an_instant_with_an_offset_means_itself(text: str, instant: str) -> None:
    """An offset decides, whatever the zone; fractions are cut off, and nothing is remarked."""
    assert times.read_instant(text, "Europe/Istanbul") == (datetime.fromisoformat(instant), "")


def test_a_local_time_is_read_in_the_zone() -> None:
    """Without an offset the zone decides, and the remark says so."""
    instant, remark = times.read_instant("2026-11-29T03:00", "Europe/Istanbul")
    assert instant == datetime(2026, 11, 29, tzinfo=UTC)
    assert (
        remark == "2026-11-29T03:00 has no offset: read as the time in Europe/Istanbul, 2026-11-29T00:00:00Z"
    )


def test_a_local_time_that_comes_twice_is_the_first() -> None:
    """The remark says that there was another."""
    instant, remark = times.read_instant("2026-11-01T01:30", "America/New_York")
    assert instant == datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
    assert remark.endswith("it came twice there, and the first is meant")


@pytest.mark.parametrize("text", ["2026-03-08T02:30", "tomorrow", "", "12:00", "2026-13-01"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    """A text that is none, and a local time that clocks skipped, are errors that say what to write."""
    with pytest.raises(
        ValueError, match=r"is not an ISO 8601 instant; write|skipped 2026-03-08 02:30:00; give"
    ):
        times.read_instant(text, "America/New_York")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.01 s"), (0.42, "0.42 s"), (3.44, "3.4 s"), (10, "10 s"), (119, "119 s"), (120, "2 min"),
        (7199, "120 min"), (7200, "2 h"), (172799, "48 h"), (172800, "2 days"), (-33, "33 s"),
    ],
)  # fmt: skip
def test_a_duration_has_about_two_figures(seconds: float, text: str) -> None:
    """Durations are for reading: a unit that fits, and no more figures than matter."""
    assert times.to_span(seconds) == times.to_span(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "now"), (-0.2, "now"), (1, "in 1 s"), (-300, "5 min ago")]
)
def test_an_instant_relative_to_now(seconds: float, text: str) -> None:
    """Ahead is "in", behind is "ago"."""
    assert times.from_now(NOW + timedelta(seconds=seconds), NOW) == text


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Europe/Istanbul", "Sun 2026-11-29 15:00 +03"),
        ("Asia/Kolkata", "Sun 2026-11-29 17:30 +05:30"),
        ("America/New_York", "Sun 2026-11-29 07:00 -05"),
    ],
)
def test_a_local_time_shows_its_offset(zone: str, text: str) -> None:
    """The offset stands with it, with minutes where it has some."""
    assert times.to_local(NOW, zone) == text


@pytest.mark.parametrize("text", ["0001-01-05T03:00:00Z", "0226-11-29T03:00Z", "9999-12-27T23:59:59Z"])
def test_what_is_said_of_an_instant_can_be_given_again(text: str) -> None:
    """A UTC text of any year, first ones included, is one that `--at` reads as the same instant."""
    instant, _ = times.read_instant(text, "UTC")
    assert times.read_instant(times.to_utc(instant), "Europe/Istanbul") == (instant, "")
