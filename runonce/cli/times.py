"""Instants and durations, read from people and written for them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from runonce.schedules.zones import zone
from runonce.stores.columns import to_text

MINUTE, HOUR, DAY = 60, 3600, 86400


def read_instant(text: str, time_zone: str) -> tuple[datetime, str]:
    """An ISO 8601 text as an instant in UTC, and a remark on how it was read, if it had no offset.

    Raises:
        ValueError: It is not one, or it names a local time that the clocks skipped.
    """
    try:
        given = datetime.fromisoformat(text.strip()).replace(microsecond=0)
    except ValueError:
        raise ValueError(
            f"{text!r} is not an ISO 8601 instant; write 2026-11-29T03:00:00Z, 2026-11-29T03:00+03:00, or "
            f"2026-11-29T03:00 for the time in {time_zone}"
        ) from None
    local = given if given.tzinfo is not None else given.replace(tzinfo=zone(time_zone))
    try:
        instant = local.astimezone(UTC).replace(microsecond=0)  # an offset may have some too
    except OverflowError:
        raise ValueError(
            f"{text!r} is beyond the calendar in UTC; give an instant in the years 1 to 9999"
        ) from None
    if local is given:
        return instant, ""
    if instant.astimezone(local.tzinfo).replace(tzinfo=None) != given:
        raise ValueError(f"the clocks in {time_zone} skipped {given}; give the instant with its offset")
    remark = f"{text} has no offset: read as the time in {time_zone}, {to_utc(instant)}"
    if local.utcoffset() != local.replace(fold=1).utcoffset():
        remark += "; it came twice there, and the first is meant"
    return instant, remark


def to_utc(instant: datetime) -> str:
    """2026-11-29T03:00:00Z, as `--at` takes it."""
    return to_text(instant.replace(microsecond=0))


def to_local(instant: datetime, time_zone: str) -> str:
    """Sun 2026-11-29 03:00 +03, with seconds and the offset's minutes where there are any."""
    local = instant.astimezone(zone(time_zone))
    offset = f"{local:%z}"
    minutes = "" if offset[3:] == "00" else f":{offset[3:5]}"
    return f"{local:%a %Y-%m-%d} {local:{'%H:%M:%S' if local.second else '%H:%M'}} {offset[:3]}{minutes}"


def to_span(duration: timedelta | float) -> str:
    """0.42 s, 94 s, 33 min, 20 h, 5 days: two figures, for reading."""
    seconds = abs(duration.total_seconds() if isinstance(duration, timedelta) else duration)
    if seconds < 10:  # noqa: PLR2004 - below, decimals are worth their room
        return f"{seconds:.2g} s" if seconds >= 0.01 else "0.01 s"  # noqa: PLR2004
    for unit, name, up_to in ((1, "s", 2 * MINUTE), (MINUTE, "min", 2 * HOUR), (HOUR, "h", 2 * DAY)):
        if seconds < up_to:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / DAY:.0f} days"


def from_now(instant: datetime, now: datetime) -> str:
    """In 5 h, 33 min ago, or now."""
    ahead = (instant - now).total_seconds()
    if abs(ahead) < 0.5:  # noqa: PLR2004 - half of the second that fire times are whole in
        return "now"
    return f"in {to_span(ahead)}" if ahead > 0 else f"{to_span(ahead)} ago"
