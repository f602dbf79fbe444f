"""Pure: a schedule that is written as `%SETTING%` is taken from the environment it is given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runonce.errors import ScheduleError
from runonce.schedules.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTING = re.compile(r"%([A-Za-z_][\w.:-]*)%")
"""How an option names the setting that has its value."""


@dataclass(frozen=True, slots=True)
class FromSetting:
    """Where a schedule comes from."""

    name: str
    """The setting's name."""
    default: Schedule | None
    is_set: bool

    def __str__(self) -> str:
        """As lists show it: "from NIGHTLY_SCHEDULE", or "the default of NIGHTLY_SCHEDULE"."""
        return f"from {self.name}" if self.is_set else f"the default of {self.name}"


def read_schedule(
    text: str, default: str | None, time_zone: str, environ: Mapping[str, str], job: str
) -> tuple[Schedule, FromSetting | None]:
    """The schedule, and the setting it comes from if it does.

    Args:
        text: An NCRONTAB expression, or `%SETTING%`.
        default: The expression where the setting is not set or empty.
        time_zone: IANA name of the zone that either is meant in.
        environ: The environment. A ":" of a setting's name is "__" there, as for the Functions host.
        job: Name of the job, for errors.

    Raises:
        ScheduleError: The setting is missing, or an expression is not valid; the message names it and the remedy.
    """
    match = SETTING.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        if default is not None:
            raise ScheduleError(
                f"Job {job!r}: default={default!r} is for a schedule that a setting gives, and {text!r} is none: "
                f'leave it out, or write "%SETTING%".'
            )
        return Schedule.parse(text, time_zone, job=job), None
    name = match[1]
    usual = None if default is None else Schedule.parse(default, time_zone, job=job)
    value = (environ.get(name) or environ.get(name.replace(":", "__")) or "").strip()
    if value:
        try:
            return Schedule.parse(value, time_zone), FromSetting(name, usual, is_set=True)
        except ScheduleError as error:
            raise ScheduleError(
                f"Job {job!r}: the setting {name}={value!r} is not its schedule: {error} Correct the setting."
            ) from None
    if usual is None:
        raise ScheduleError(
            f"Job {job!r}: its schedule is the setting {name}, which is not set: set it, such as "
            f'{name}="0 0 3 * * *", or give @scheduled a default="0 0 3 * * *".'
        )
    return usual, FromSetting(name, usual, is_set=False)
