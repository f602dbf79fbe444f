"""What `next --host` shows: a schedule in the hosts' words, and their ticks beside its fire times."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from runonce.cli import output, times
from runonce.cli.exits import Exit
from runonce.schedules.host_ticks import Comparison, compare
from runonce.schedules.zones import SECOND
from runonce.schedules.zones import zone as zone_of

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.definition import ScheduledJob


class Host(StrEnum):
    """The hosts whose timers are not the toolkit's own."""

    FUNCTIONS = "functions"
    CONTAINER_APPS = "container-apps"
    BOTH = "both"


def show_hosts(job: ScheduledJob, start: datetime, host: Host, *, as_json: bool) -> None:
    """Print both hosts' side of it; ends with 5 where the one that was asked for cannot take the job."""
    made = compare(job.schedule, start, job=job.name)
    if as_json:
        output.print_json(_json(job, made))
    else:
        _table(job, made)
    if made.refusal and host is not Host.FUNCTIONS:
        output.warn(made.refusal)
        if host is Host.CONTAINER_APPS:
            raise typer.Exit(Exit.CONFIGURATION)


def origin(job: ScheduledJob) -> str:
    """What is said behind a schedule that a setting gives."""
    return "" if job.setting is None else f", {job.setting}"


def setting_json(job: ScheduledJob) -> dict[str, str]:
    """The same with `--json`: the setting's name, where the schedule is not the code's."""
    return {} if job.setting is None else {"schedule_setting": job.setting.name}


def _table(job: ScheduledJob, made: Comparison) -> None:
    zone, console = job.schedule.time_zone, output.console()
    console.print(
        output.styled((job.name, "bold"), (f"  {job.schedule.expression}  {zone}{origin(job)}", ""))
    )
    console.print(f"Functions       {made.functions}  UTC")
    console.print(f"Container Apps  {made.container_apps or 'cannot be said in its five fields'}  UTC")
    change = made.clocks_change
    console.print(
        f"\nclocks in {zone} change next at {times.to_utc(change)}, from "
        f"{_offset(change, zone, before=True)} to {_offset(change, zone)}\n"
        if change
        else f"\nclocks in {zone} do not change in the next 400 days\n"
    )
    shown = output.table("UTC", zone, "Job", "Functions", "Container Apps")
    for tick in made.ticks:
        shown.add_row(
            times.to_utc(tick.at),
            times.to_local(tick.at, zone),
            output.styled(("fires", "green") if tick.due else ("not due", "dim")),
            "ticks" if tick.functions else "-",
            "ticks" if tick.container_apps else "-",
        )
    console.print(shown)


def _offset(change: datetime, zone: str, *, before: bool = False) -> str:
    return f"{(change - SECOND if before else change).astimezone(zone_of(zone)):%z}"


def _json(job: ScheduledJob, made: Comparison) -> dict[str, Any]:
    return {
        "job": job.name,
        "schedule": job.schedule.expression,
        **setting_json(job),
        "time_zone": job.schedule.time_zone,
        "functions_timer": made.functions,
        "container_apps_cron": made.container_apps,
        "container_apps_refusal": made.refusal,
        "clocks_change": made.clocks_change,
        "ticks": [
            {
                "utc": tick.at,
                "local": tick.at.astimezone(zone_of(job.schedule.time_zone)).isoformat(),
                "due": tick.due,
                "functions": tick.functions,
                "container_apps": tick.container_apps,
            }
            for tick in made.ticks
        ],
    }
