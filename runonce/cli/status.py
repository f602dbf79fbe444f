"""Commands that show what the rows say: status, history."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from runonce.cli import output, times
from runonce.cli.app import LOOK, JobName, Json, command
from runonce.cli.context import Context, where
from runonce.cli.exits import Exit
from runonce.cli.which import read_fire_time
from runonce.errors import InputError
from runonce.runs import status as report
from runonce.runs.audit import audit as audit_jobs
from runonce.runs.parameters import parameters_json
from runonce.runs.rows import Outcome, RunRow
from runonce.runs.table import read_jobs


@command(LOOK, "runonce status", "runonce status nightly_report --json")
def status(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Only this job.")] = None,
    as_json: Json = False,
) -> None:
    """Show what every job did last, does now and does next.

    All times are UTC. A job is running when its row says so and its lease is held; a run whose lease has expired
    is shown as abandoned, and the next recovery tick takes it over. Jobs in trouble come first.

    Ends with 5 when a job file is broken or a job's row cannot be read, else with 1 when a job's last run failed or
    something is overdue, else with 0.
    """
    context = Context.of(ctx)
    name = None if job is None else context.row(job).name
    statuses = report.job_statuses(context.runtime.dispatcher, context.runtime.found)
    statuses = [one for one in statuses if name in (None, one.name)]
    settings, found, now = context.runtime.settings, context.runtime.found, context.runtime.clock.now()
    overdue = {
        one.job: one.overdue
        for one in audit_jobs(found.jobs.values(), read_jobs(context.runtime.runs), now)
        if one.overdue
    }
    broken = [str(error) for error in found.broken]
    trouble = {one.name: _trouble(one, overdue) for one in statuses}
    if as_json:
        output.print_json({"namespace": settings.namespace, "jobs": statuses, "broken_files": broken})
    else:
        typer.echo(f"namespace {settings.namespace!r} on {where(settings.storage)}")
        if statuses:
            statuses.sort(key=lambda one: (-trouble[one.name], one.name))
            output.console().print(_jobs_table(statuses, now, overdue))
        else:
            output.note("no file of the jobs folder defines a job, and storage knows of none")
        output.warn_of_broken(found)
    if broken or any(one.unreadable for one in statuses):
        raise typer.Exit(Exit.CONFIGURATION)
    if any(trouble[one.name] > NEITHER for one in statuses):
        raise typer.Exit(Exit.FAILED)


NEITHER, FAILED, OVERDUE, UNREADABLE = range(4)
"""How much a job is in trouble."""


def _trouble(job: report.JobStatus, overdue: Mapping[str, timedelta]) -> int:
    if job.unreadable:
        return UNREADABLE
    if job.name in overdue:
        return OVERDUE
    failed = job.last is not None and job.last.outcome in (Outcome.FAILED, Outcome.UNKNOWN)
    return FAILED if failed else NEITHER


def _jobs_table(statuses: list[report.JobStatus], now: datetime, overdue: Mapping[str, timedelta]) -> Any:
    made = output.table("Job", "Now", "Last run", "Next (UTC)")
    for one in statuses:
        made.add_row(
            _name(one, overdue.get(one.name)), _doing(one, now), _last(one, now), _upcoming(one, now)
        )
        made.add_section()
    return made


def _name(job: report.JobStatus, overdue: timedelta | None) -> Any:
    remark = "\nits row cannot be read" if job.unreadable else "" if job.in_code else "\nnot in the code"
    late = f"\noverdue for {times.to_span(overdue)}" if overdue and not job.unreadable else ""
    return output.styled((job.name, "bold"), (remark, "red" if job.unreadable else "yellow"), (late, "red"))


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
    reason = f"\n{output.short(job.last.reason, 160)}" if job.last.reason else ""
    failed = ", failed" if job.last.outcome == Outcome.RETRYING else ""
    return output.styled(
        (job.last.outcome, output.STYLES.get(job.last.outcome, "")),
        (f"{failed}{ago}", ""),
        (f"\n{times.to_utc(job.last.fire_time)}", "dim"),
        (reason, ""),
    )


def _upcoming(job: report.JobStatus, now: datetime) -> Any:
    if job.next_fire_time is None or job.paused_at is not None:
        return output.styled(("-", "dim"))
    fire_time = f"{job.next_fire_time:%Y-%m-%d %H:%M:%S}"
    return output.styled((fire_time, ""), (f"\n{times.from_now(job.next_fire_time, now)}", "dim"))


# -- history ----------------------------------------------------------------------------------------------------


@command(
    LOOK,
    "runonce history nightly_report",
    "runonce history nightly_report -n 1 --attempts --json",
    "runonce history nightly_report --at 2026-11-29T00:00:00Z",
)
def history(
    ctx: typer.Context,
    job: JobName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many fire times.")] = 20,
    attempts: Annotated[bool, typer.Option("--attempts", help="Also show earlier attempts.")] = False,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="INSTANT", help="All of one fire time, its traceback included."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what became of a job's latest fire times, or all that is known of one."""
    context = Context.of(ctx)
    name = context.row(job).name
    if at is None:
        runs = report.history(context.runtime.dispatcher, name, count)
    else:
        fire_time = read_fire_time(context.runtime.jobs.get(name), at)
        runs = report.runs_at(context.runtime.dispatcher, name, fire_time)
        if not runs:
            message = f"{name} has no run at {times.to_utc(fire_time)}; `runonce history {name}` lists those it has."
            raise InputError(message)
    if as_json:
        output.print_json({"job": name, "runs": [_run_json(run) for run in runs]})
    elif at is not None:
        for run in runs:
            _print_run(run, context.runtime.clock.now())
    elif runs:
        console = output.console()
        wide = console.width >= output.WIDE
        console.print(_runs_table(runs, context.runtime.clock.now(), attempts=attempts, wide=wide))
    else:
        output.note(f"{name} has not run yet; `runonce run {name}` runs it now, here")


def _print_run(run: RunRow, now: datetime) -> None:
    """Everything a row says, line by line; control characters are shown, as in tables."""
    lines = [
        f"{run.job} {times.to_utc(run.fire_time)}: {run.outcome}, attempt {run.attempt}, took {_took(run, now)}",
        f"  on {run.host or '-'}, by {run.by or '-'}, token {run.token}",
        *(f"  {what}" for what in (_why(run), *run.decisions) if what),
    ]
    for earlier in run.attempts:
        took = _took_text(earlier.get("started_at", ""), earlier.get("finished_at", ""))
        lines.append(
            f"  attempt {earlier.get('attempt', '?')}: {earlier.get('outcome', '')} on {earlier.get('host', '')} "
            f"at {earlier.get('finished_at', '')}, took {took}: {earlier.get('reason', '')}"
        )
    typer.echo(
        output.styled(("\n".join([*lines, *(["", run.error.rstrip()] if run.error else [])]), "")).plain
    )


def _runs_table(runs: list[RunRow], now: datetime, *, attempts: bool, wide: bool) -> Any:
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
    return made


def _why(run: RunRow) -> str:
    replayed = (
        f"replayed {run.generation} times; " if run.generation > 1 else "replayed; " if run.generation else ""
    )
    retried = (
        f"; due again at {times.to_utc(run.retry_at)}" if run.retry_at and not run.outcome.is_final else ""
    )
    done = ", ".join(f"{count} {name} done" for name, count in run.progress.items())
    unfinished = f"; {done}" if done and run.outcome is not Outcome.SUCCEEDED else ""
    decided = f"; {run.decisions[-1]}" if run.decisions else ""
    given = f"with {run.params}; " if run.params else ""
    return f"{given}{replayed}{output.short(run.reason, 400)}{retried}{unfinished}{decided}".strip("; ")


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
        "parameters": parameters_json(run.params),
        "decisions": list(run.decisions),
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
