"""Instants, durations and schedules as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from cron_descriptor import FormatError, Options, get_description

from runonce.schedules.zones import zone

UNITS = (("day", 86400), ("h", 3600), ("min", 60), ("s", 1))


def utc(instant: datetime | None) -> str:
    """2026-11-30 02:00:05 UTC."""
    return "" if instant is None else f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def local(instant: datetime | None, time_zone: str) -> str:
    """The same in a zone: 2026-11-30 05:00:05+03:00; nothing where that is UTC anyway."""
    if instant is None or time_zone in ("", "UTC"):
        return ""
    return instant.astimezone(zone(time_zone)).isoformat(" ", "seconds")


def duration(seconds: float | None) -> str:
    """0.4 s, 12 s, 3 min 5 s, 2 h 10 min, 4 days: two units at most."""
    if seconds is None:
        return ""
    if seconds < 10:  # noqa: PLR2004 - so long tenths say something
        return f"{seconds:.1f} s"
    left, parts = round(seconds), []
    for unit, size in UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}")
    return " ".join(parts[:2])


def ago(instant: datetime | None, now: datetime) -> str:
    """5 min ago, in 2 h, just now."""
    if instant is None:
        return ""
    seconds = round((now - instant).total_seconds())
    if not seconds:
        return "just now"
    said = f"{abs(seconds)} s" if abs(seconds) < 60 else duration(abs(seconds))  # noqa: PLR2004 - a minute
    return f"{said} ago" if seconds > 0 else f"in {said}"


def explained(expression: str) -> str:
    """A schedule in words, or nothing where they are not found."""
    options = Options()
    options.use_24hour_time_format = True
    options.day_of_week_start_index_zero = True
    try:
        return str(get_description(expression, options))
    except (FormatError, ValueError, KeyError, IndexError):
        return ""
