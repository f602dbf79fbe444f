"""Commands that read the jobs folder, and no storage: list, next."""

from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any

import typer

from runonce.cli import output, times
from runonce.cli.app import LOOK, JobName, Json, command, read_at
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.cli.handlers import listed_handlers, print_handlers
from runonce.cli.hosts import Host, origin, setting_json, show_hosts
from runonce.hosts.discover import Discovered
from runonce.runs.definition import ScheduledJob
from runonce.schedules.schedule import Schedule
from runonce.schedules.zones import zone

KINDS = {
    True: (
        "interval",
        "an interval schedule: it goes by real time, so changing clocks neither stall nor repeat it",
    ),
    False: (
        "fixed-time",
        "a fixed-time schedule: each local time it names comes once, also in nights when clocks change",
    ),
}


# -- list -------------------------------------------------------------------------------------------------------


@command(LOOK, "runonce list", "runonce list --jobs other/jobs --json", name="list")
def list_jobs(ctx: typer.Context, as_json: Json = False) -> None:
    """List the jobs and when each fires next, the handlers, and what each host does by itself.

    Needs only the jobs folder, no storage. Ends with 5 when a job file is broken, so that it can check a change
    before it is deployed.
    """
    context = Context.of(ctx)
    found, now = context.runtime.found, context.runtime.clock.now()
    jobs = sorted(found.jobs.values(), key=lambda job: job.name)
    if as_json:
        listed = [_listed(job, found.files[job.name].as_posix(), now) for job in jobs]
        broken = [str(error) for error in found.broken]
        own = [
            {"name": one.name, "summary": one.summary, "seconds": one.interval}
            for one in found.every.values()
        ]
        output.print_json(
            {"jobs": listed, "handlers": listed_handlers(found), "every": own, "broken_files": broken}
        )
    elif jobs:
        output.console().print(_jobs_table(jobs, found, now))
    elif not (found.handlers or found.every):
        output.note("no file of the jobs folder defines a job; write a function under @scheduled in one")
    if found.handlers and not as_json:
        print_handlers(found)
    if found.every and not as_json:
        made = output.table("Every", "On each host")
        for one in found.every.values():
            made.add_row(
                f"{one.interval:g} s",
                output.styled(
                    (one.name, "bold"), (f"\n{one.summary or found.files[one.name].as_posix()}", "dim")
                ),
            )
        output.console().print(made)
    output.warn_of_broken(found)
    if found.broken:
        raise typer.Exit(Exit.CONFIGURATION)


def _jobs_table(jobs: list[ScheduledJob], found: Discovered, now: datetime) -> Any:
    made = output.table("Job", "Schedule", "Next")
    for job in jobs:
        upcoming = job.schedule.next(now)
        made.add_row(
            output.styled(
                (job.name, "bold"), (f"\n{job.summary or found.files[job.name].as_posix()}", "dim")
            ),
            output.styled((job.schedule.expression, ""), (f"\n{job.schedule.time_zone}{origin(job)}", "dim")),
            "never"
            if upcoming is None
            else output.styled(
                (times.to_local(upcoming, job.schedule.time_zone), ""),
                (f"\n{times.from_now(upcoming, now)}", "dim"),
            ),
        )
        made.add_section()
    return made


def _listed(job: ScheduledJob, file: str, now: datetime) -> dict[str, Any]:
    return {
        "name": job.name,
        "summary": job.summary,
        "file": file,
        "schedule": job.schedule.expression,
        **setting_json(job),
        "time_zone": job.schedule.time_zone,
        "kind": KINDS[job.schedule.is_interval][0],
        "next_fire_time": job.schedule.next(now),
        "misfire": job.misfire,
        "retries": job.retry.retries,
        "max_runtime_seconds": job.max_runtime,
        "on_abandoned": job.on_abandoned,
    }


# -- next -------------------------------------------------------------------------------------------------------


@command(
    LOOK,
    "runonce next nightly_report",
    "runonce next nightly_report -n 3 --after 2027-03-27",
    "runonce next nightly_report --host both",
    name="next",
)
def next_fire_times(
    ctx: typer.Context,
    job: JobName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many fire times.")] = 10,
    after: Annotated[
        str | None,
        typer.Option(metavar="INSTANT", help="Begin there instead of now; ISO 8601, as for `run --at`."),
    ] = None,
    host: Annotated[
        Host | None, typer.Option(help="Also show the hosts' own timers, over the next change of clocks.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show when a job fires next, in local time and UTC.

    A remark says what changing clocks do to a fire time. With --host it shows how the hosts' own timers are set,
    which know only UTC, and each of their ticks around the next change of clocks; at a tick that is not due, the
    job is not started. Ends with 5 when that host cannot take the job.
    """
    context = Context.of(ctx)
    found = context.job(job)
    schedule, now = found.schedule, context.runtime.clock.now()
    start = read_at(after, schedule.time_zone, "--after") if after else now
    if host is not None:
        show_hosts(found, start, host, as_json=as_json)
        return
    fire_times: list[datetime] = []
    while len(fire_times) < count and (upcoming := schedule.next(start)) is not None:
        fire_times.append(upcoming)
        start = upcoming
    if as_json:
        output.print_json(_fire_times_json(found, fire_times))
        return
    console = output.console()
    console.print(
        output.styled(
            (found.name, "bold"), (f"  {schedule.expression}  {schedule.time_zone}{origin(found)}", "")
        )
    )
    console.print(f"{KINDS[schedule.is_interval][1]}\n")
    console.print(_fire_times_table(schedule, fire_times, now))
    if len(fire_times) < count:
        output.note(f"there are only {len(fire_times)} within 45 years")


def _fire_times_json(job: ScheduledJob, fire_times: list[datetime]) -> dict[str, Any]:
    schedule = job.schedule
    return {
        "job": job.name,
        "schedule": schedule.expression,
        **setting_json(job),
        "time_zone": schedule.time_zone,
        "kind": KINDS[schedule.is_interval][0],
        "fire_times": [
            {
                "utc": fire_time,
                "local": fire_time.astimezone(zone(schedule.time_zone)).isoformat(),
                "oddity": schedule.oddity(fire_time),
            }
            for fire_time in fire_times
        ],
    }


def _fire_times_table(schedule: Schedule, fire_times: list[datetime], now: datetime) -> Any:
    oddities = [schedule.oddity(fire_time) or "" for fire_time in fire_times]
    remarks = ["Remark"] if any(oddities) else []
    made = output.table(schedule.time_zone, "UTC", "", *remarks)
    gaps = _changed_offsets(fire_times, schedule.time_zone)
    for fire_time, oddity in zip(fire_times, oddities, strict=True):
        made.add_row(
            output.styled(
                (times.to_local(fire_time, schedule.time_zone), "yellow" if fire_time in gaps else "")
            ),
            times.to_utc(fire_time),
            output.styled((times.from_now(fire_time, now), "dim")),
            *([output.styled((oddity, "yellow"))] if remarks else []),
        )
    return made


def _changed_offsets(fire_times: list[datetime], time_zone: str) -> set[datetime]:
    return {
        later
        for earlier, later in pairwise(fire_times)
        if earlier.astimezone(zone(time_zone)).utcoffset() != later.astimezone(zone(time_zone)).utcoffset()
    }
