"""Commands that read: list, next, status, history."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from runonce.cli import output, times
from runonce.cli.app import LOOK, JobName, Json, command, read_at
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.cli.handlers import listed_handlers, print_handlers
from runonce.cli.hosts import Host, show_hosts
from runonce.runs import status as report
from runonce.runs.definition import ScheduledJob
from runonce.runs.rows import Outcome, RunRow

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


def _warn_of_broken(context: Context) -> None:
    for error in context.found.broken:
        output.warn(str(error))


def _broken(context: Context) -> list[str]:
    return [str(error) for error in context.found.broken]


# -- list -------------------------------------------------------------------------------------------------------


@command(LOOK, "runonce list", "runonce list --jobs other/jobs --json", name="list")
def list_jobs(ctx: typer.Context, as_json: Json = False) -> None:
    """List the jobs and when each fires next, and the handlers.

    Needs only the jobs folder, no storage. Ends with 5 when a job file is broken, so that it can check a change
    before it is deployed.
    """
    context = Context.of(ctx)
    found, now = context.found, context.clock.now()
    jobs = sorted(found.jobs.values(), key=lambda job: job.name)
    if as_json:
        listed = [_listed(job, found.files[job.name].name, now) for job in jobs]
        output.print_json(
            {"jobs": listed, "handlers": listed_handlers(found), "broken_files": _broken(context)}
        )
    elif jobs:
        made = output.table("Job", "Schedule", "Next")
        for job in jobs:
            upcoming = job.schedule.next(now)
            made.add_row(
                output.styled((job.name, "bold"), (f"\n{job.summary or found.files[job.name].name}", "dim")),
                output.styled((job.schedule.expression, ""), (f"\n{job.schedule.time_zone}", "dim")),
                "never"
                if upcoming is None
                else output.styled(
                    (times.to_local(upcoming, job.schedule.time_zone), ""),
                    (f"\n{times.from_now(upcoming, now)}", "dim"),
                ),
            )
            made.add_section()
        output.console().print(made)
    elif not found.handlers:
        output.note("no file of the jobs folder defines a job; write a function under @scheduled in one")
    if found.handlers and not as_json:
        print_handlers(found)
    _warn_of_broken(context)
    if found.broken:
        raise typer.Exit(Exit.CONFIGURATION)


def _listed(job: ScheduledJob, file: str, now: datetime) -> dict[str, Any]:
    return {
        "name": job.name,
        "summary": job.summary,
        "file": file,
        "schedule": job.schedule.expression,
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
    schedule, now = found.schedule, context.clock.now()
    start = read_at(after, schedule.time_zone, "--after") if after else now
    if host is not None:
        show_hosts(found, start, host, as_json=as_json)
        return
    fire_times: list[datetime] = []
    while len(fire_times) < count and (upcoming := schedule.next(start)) is not None:
        fire_times.append(upcoming)
        start = upcoming
    kind, meaning = KINDS[schedule.is_interval]
    if as_json:
        output.print_json(
            {
                "job": found.name,
                "schedule": schedule.expression,
                "time_zone": schedule.time_zone,
                "kind": kind,
                "fire_times": [
                    {
                        "utc": fire_time,
                        "local": fire_time.astimezone(ZoneInfo(schedule.time_zone)).isoformat(),
                        "oddity": schedule.oddity(fire_time),
                    }
                    for fire_time in fire_times
                ],
            }
        )
        return
    console = output.console()
    console.print(output.styled((found.name, "bold"), (f"  {schedule.expression}  {schedule.time_zone}", "")))
    console.print(f"{meaning}\n")
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
    console.print(made)
    if len(fire_times) < count:
        output.note(f"there are only {len(fire_times)} within 45 years")


def _changed_offsets(fire_times: list[datetime], time_zone: str) -> set[datetime]:
    return {
        later
        for earlier, later in pairwise(fire_times)
        if earlier.astimezone(ZoneInfo(time_zone)).utcoffset()
        != later.astimezone(ZoneInfo(time_zone)).utcoffset()
    }


# -- status -----------------------------------------------------------------------------------------------------


@command(LOOK, "runonce status", "runonce status nightly_report --json")
def status(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Only this job.")] = None,
    as_json: Json = False,
) -> None:
    """Show what every job did last, does now and does next.

    All times are UTC. A job is running when its row says so and its lease is held; a run whose lease has expired
    is shown as abandoned, and the next recovery tick takes it over.
    """
    context = Context.of(ctx)
    name = None if job is None else context.row(job).name
    statuses = report.job_statuses(context.dispatcher, context.found)
    statuses = [one for one in statuses if name in (None, one.name)]
    if as_json:
        namespace = context.settings.namespace
        output.print_json({"namespace": namespace, "jobs": statuses, "broken_files": _broken(context)})
        return
    now = context.clock.now()
    if statuses:
        made = output.table("Job", "Now", "Last run", "Next (UTC)")
        for one in statuses:
            made.add_row(_name(one), _doing(one, now), _last(one, now), _upcoming(one, now))
            made.add_section()
        output.console().print(made)
    else:
        output.note("no file of the jobs folder defines a job, and storage knows of none")
    _warn_of_broken(context)


def _name(job: report.JobStatus) -> Any:
    remark = "\nits row cannot be read" if job.unreadable else "" if job.in_code else "\nnot in the code"
    return output.styled((job.name, "bold"), (remark, "red" if job.unreadable else "yellow"))


def _doing(job: report.JobStatus, now: datetime) -> Any:
    lines: list[tuple[str, str]] = []
    if job.running is not None:
        held = job.running.lease_held
        span = times.to_span(now - (job.running.since or now))
        lines += [
            ("running", "cyan") if held else ("abandoned", "yellow"),
            (f" for {span}" if held else f", began {span} ago", ""),
            (f", attempt {job.running.attempt}\n", ""),
            (f"{times.to_utc(job.running.fire_time)}\non {job.running.host}\n", "dim"),
        ]
    if job.paused_at is not None:
        why = f": {job.paused_why}" if job.paused_why else ""
        lines += [("paused", "yellow"), (f" {times.from_now(job.paused_at, now)}{why}\n", "")]
    for pending in job.pending[:3]:
        due = "due now" if pending.not_before <= now else f"due {times.from_now(pending.not_before, now)}"
        lines += [
            (pending.why, "yellow"),
            (f", {due}\n", ""),
            (f"{times.to_utc(pending.fire_time)}\n", "dim"),
        ]
    if len(job.pending) > 3:  # noqa: PLR2004 - as many as are shown above
        lines.append((f"and {len(job.pending) - 3} more\n", ""))
    text = output.styled(*lines) if lines else output.styled(("idle", "dim"))
    text.rstrip()
    return text


def _last(job: report.JobStatus, now: datetime) -> Any:
    if job.last is None:
        return output.styled(("never ran", "dim"))
    ago = "" if job.last.finished_at is None else f" {times.from_now(job.last.finished_at, now)}"
    reason = f"\n{_short(job.last.reason)}" if job.last.reason else ""
    failed = ", failed" if job.last.outcome == Outcome.RETRYING else ""
    return output.styled(
        (job.last.outcome, output.STYLES.get(job.last.outcome, "")),
        (f"{failed}{ago}", ""),
        (f"\n{times.to_utc(job.last.fire_time)}", "dim"),
        (reason, ""),
    )


def _short(text: str, most: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _upcoming(job: report.JobStatus, now: datetime) -> Any:
    if job.next_fire_time is None or job.paused_at is not None:
        return output.styled(("-", "dim"))
    fire_time = f"{job.next_fire_time:%Y-%m-%d %H:%M:%S}"
    return output.styled((fire_time, ""), (f"\n{times.from_now(job.next_fire_time, now)}", "dim"))


# -- history ----------------------------------------------------------------------------------------------------


@command(LOOK, "runonce history nightly_report", "runonce history nightly_report -n 1 --attempts --json")
def history(
    ctx: typer.Context,
    job: JobName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many fire times.")] = 20,
    attempts: Annotated[bool, typer.Option("--attempts", help="Also show earlier attempts.")] = False,
    as_json: Json = False,
) -> None:
    """Show what became of a job's latest fire times."""
    context = Context.of(ctx)
    name = context.row(job).name
    runs = report.history(context.dispatcher, name, count)
    now = context.clock.now()
    if as_json:
        output.print_json({"job": name, "runs": [_run_json(run) for run in runs]})
        return
    if not runs:
        output.note(f"{name} has not run yet; `runonce run {name}` runs it now, here")
        return
    console = output.console()
    wide = console.width >= output.WIDE
    made = output.table(
        "Fire time", "Outcome", "Attempt", "Took", *(["Host", "Reason"] if wide else ["Where and why"])
    )
    made.columns[2].justify = made.columns[3].justify = "right"
    for run in runs:
        host = f"{run.host} ({run.by})" if run.by else run.host
        made.add_row(
            times.to_utc(run.fire_time),
            _outcome(run.outcome),
            str(run.attempt or "-"),
            _took(run, now),
            *_where_and_why(host, _why(run), wide=wide),
        )
        for earlier in reversed(run.attempts) if attempts else ():
            made.add_row(
                "",
                _outcome(earlier.get("outcome", "")),
                earlier.get("attempt", ""),
                _took_text(earlier.get("started_at", ""), earlier.get("finished_at", "")),
                *_where_and_why(earlier.get("host", ""), earlier.get("reason", ""), wide=wide),
            )
    console.print(made)


def _why(run: RunRow) -> str:
    replayed = (
        f"replayed {run.generation} times; " if run.generation > 1 else "replayed; " if run.generation else ""
    )
    retried = (
        f"; due again at {times.to_utc(run.retry_at)}" if run.retry_at and not run.outcome.is_final else ""
    )
    done = ", ".join(f"{count} {name} done" for name, count in run.progress.items())
    unfinished = f"; {done}" if done and run.outcome is not Outcome.SUCCEEDED else ""
    return f"{replayed}{_short(run.reason, 400)}{retried}{unfinished}".strip("; ")


def _where_and_why(host: str, why: str, *, wide: bool) -> list[Any]:
    if wide:
        return [output.styled((host, "dim")), why]
    both = "\n" if host and why else ""
    return [output.styled((host + both, "dim"), (why, ""))]


def _outcome(outcome: str) -> Any:
    return output.styled((outcome, output.STYLES.get(outcome, "")))


def _took(run: RunRow, now: datetime) -> str:
    if run.started_at is None:
        return "-"
    if run.finished_at is None:
        return f"{times.to_span(now - run.started_at)} …"
    return times.to_span(run.finished_at - run.started_at)


def _took_text(started: str, finished: str) -> str:
    if not started or not finished:
        return "-"
    return times.to_span(datetime.fromisoformat(finished) - datetime.fromisoformat(started))


def _run_json(run: RunRow) -> dict[str, Any]:
    took: timedelta | None = run.finished_at - run.started_at if run.finished_at and run.started_at else None
    return {
        "fire_time": run.fire_time,
        "outcome": run.outcome,
        "reason": run.reason,
        "attempt": run.attempt,
        "by": run.by,
        "host": run.host,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "seconds": None if took is None else took.total_seconds(),
        "retry_at": run.retry_at,
        "fencing_token": run.token,
        "failures": run.failures,
        "abandoned": run.abandoned,
        "replays": run.generation,
        "progress": run.progress,
        "error": run.error,
        "attempts": [_attempt_json(attempt) for attempt in run.attempts],
    }


def _attempt_json(attempt: Any) -> dict[str, Any]:
    return {
        "attempt": int(attempt.get("attempt") or 0),
        "outcome": attempt.get("outcome", ""),
        "reason": attempt.get("reason", ""),
        "host": attempt.get("host", ""),
        "started_at": attempt.get("started_at") or None,
        "finished_at": attempt.get("finished_at") or None,
    }
