"""The command that says whether everything ran that should have: audit."""

import re
from datetime import datetime, timedelta
from itertools import groupby
from typing import Annotated, Any, get_args

import typer

from runonce.cli import output, times
from runonce.cli.app import LOOK, Json, command, job_names, read_at
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.messages.status import HandlerAudit, audit_messages
from runonce.runs.accounts import JobAudit, What, audit_since
from runonce.runs.audit import Audited
from runonce.runs.audit import audit as audit_jobs
from runonce.runs.table import read_jobs

SHOWN = 30
"""Findings that are shown."""
UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
SAID = get_args(What)[1:]
"""All but done, which has a column of its own."""
RED = ("failed", "unknown", "owed")


@command(LOOK, "runonce audit", "runonce audit --since 24h nightly_report", "runonce audit --json")
def audit(
    ctx: typer.Context,
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Only this job.", autocompletion=job_names)
    ] = None,
    since: Annotated[
        str,
        typer.Option(metavar="SPAN", help="How far back: 90m, 24h, 7d, 2w, or an instant, ISO 8601."),
    ] = "7d",
    as_json: Json = False,
) -> None:
    """Show whether every fire time took place that the schedules name, and what became of messages.

    A job's accounts begin when the first host saw it; each version of its schedule accounts for its own fire times,
    and what was paused is skipped. Owed is a fire time that nothing accounts for, one that waits for too long, and a
    run that failed for good or is unknown, until somebody decides about it (resume-run, replay, mark).

    Ends with 5 when a job file is broken, else with 1 when anything is owed, else with 0.
    """
    context = Context.of(ctx)
    runtime = context.runtime
    begins = _begins(since, runtime.clock.now())
    name = None if job is None else context.row(job).name
    standing = {
        one.job: one
        for one in audit_jobs(runtime.found.jobs.values(), read_jobs(runtime.runs), runtime.clock.now())
    }
    audited = audit_since(runtime.dispatcher, begins, name or "")
    handlers = audit_messages(runtime.claims, begins) if name is None else []
    overdue = {one.job for one in standing.values() if one.state == "overdue" and name in (None, one.job)}
    owed = bool(overdue) or any(one.owed for one in audited) or any(one.owed for one in handlers)
    if as_json:
        output.print_json(
            {
                "since": begins,
                "jobs": [_json(one, standing.get(one.job)) for one in audited],
                "handlers": [_handler_json(one) for one in handlers],
                "overdue": bool(overdue),
                "owed": owed,
                "broken_files": [str(error) for error in runtime.found.broken],
            }
        )
    else:
        _print(audited, standing, handlers, begins)
    output.warn_of_broken(runtime.found)
    if runtime.found.broken:
        raise typer.Exit(Exit.CONFIGURATION)
    if owed:
        raise typer.Exit(Exit.FAILED)


def _begins(text: str, now: datetime) -> datetime:
    found = re.fullmatch(r"\s*(\d{1,6})\s*([mhdw])\s*", text)
    if found is None:
        return read_at(text, "UTC", "--since")
    try:
        return now - timedelta(**{UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is before the calendar begins", param_hint="--since") from None


def _print(
    audited: list[JobAudit], standing: dict[str, Audited], handlers: list[HandlerAudit], begins: datetime
) -> None:
    console = output.console()
    typer.echo(f"since {times.to_utc(begins)}")
    if audited:
        made = output.table("Job", "State", "Expected", "Done", "Beside that")
        made.columns[2].justify = made.columns[3].justify = "right"
        for one in sorted(audited, key=lambda one: (not one.owed, one.job)):
            state, late = _state(one, standing.get(one.job))
            made.add_row(
                output.styled((one.job, "bold")),
                output.styled((state, "red" if late or one.owed else ""), (late, "")),
                f"{one.expected:,}",
                f"{one.counts.get('done', 0):,}",
                _beside(one),
            )
        console.print(made)
    if audited and handlers:
        typer.echo()
    if handlers:
        made = output.table("Handler", "Done", "Retried", "Waiting", "Held", "Dead-lettered")
        for column in made.columns[1:]:
            column.justify = "right"
        for of in handlers:
            made.add_row(
                output.styled((of.handler, "bold")),
                f"{of.done:,}",
                f"{of.retried:,}",
                f"{of.waiting:,}",
                output.styled((f"{of.held:,}", "red" if of.held else "")),
                output.styled((f"{of.failed:,}", "red" if of.failed else "")),
            )
        console.print(made)
    if not (audited or handlers):
        output.note("no file of the jobs folder defines a job, and storage knows of none")
    _print_findings(audited)


def _print_findings(audited: list[JobAudit]) -> None:
    made, shown = output.table("Job", "Fire time", "What", "Why"), 0
    for one in sorted(audited, key=lambda one: (not one.owed, one.job)):
        for (what, why, is_owed), alike in groupby(one.findings, lambda f: (f.what, f.detail, f.is_owed)):
            if shown == SHOWN:
                break
            shown += 1
            newest, *others = list(alike)
            more = "+" * bool(one.more and others and others[-1] is one.findings[-1])
            to = f"\nback to {times.to_utc(others[-1].fire_time)}" if others else ""
            count = f"{len(others) + 1:,}{more} " if others else ""
            made.add_row(
                output.styled((one.job, "bold")),
                output.styled((times.to_utc(newest.fire_time), ""), (to, "")),
                output.styled((f"{count}{what}", "red" if is_owed else "")),
                output.styled((why, "")),
            )
    if shown:
        typer.echo()
        output.console().print(made)
    if shown == SHOWN:
        output.note("there may be more; name a job, or see `--json`; the counts above are of all")


def _state(one: JobAudit, standing: Audited | None) -> tuple[str, str]:
    """How the job stands, and for how long it is overdue."""
    if standing is not None and standing.overdue:
        return standing.state, f" for {times.to_span(standing.overdue)}"
    if not one.in_code:
        return "not in the code", ""
    state = "well" if standing is None else str(standing.state)
    return ("owed" if one.owed and state in ("well", "failing", "new") else state), ""


def _beside(one: JobAudit) -> Any:
    parts: list[tuple[str, str]] = []
    for what in SAID:
        if count := one.counts.get(what, 0):
            parts += [(", " if parts else "", ""), (f"{count:,} {what}", "red" if what in RED else "")]
    if one.other:
        parts += [(", " if parts else "", ""), (f"{one.other:,} by hand", "dim")]
    return output.styled(*(parts or [("-", "dim")]))


def _json(one: JobAudit, standing: Audited | None) -> dict[str, Any]:
    return {
        "job": one.job,
        "in_code": one.in_code,
        "state": _state(one, standing)[0],
        "overdue_seconds": 0 if standing is None else int(standing.overdue.total_seconds()),
        "expected": None if standing is None else standing.expected,
        "last_fire_time": None if standing is None else standing.last_fire_time,
        "last_outcome": "" if standing is None else standing.last_outcome,
        "accounts_since": one.since,
        "fire_times": one.expected,
        "counts": {what: one.counts.get(what, 0) for what in ("done", *SAID)},
        "by_hand": one.other,
        "findings": one.findings,
        "more_findings": one.more,
        "owed": one.owed,
    }


def _handler_json(one: HandlerAudit) -> dict[str, Any]:
    return {
        "handler": one.handler,
        "done": one.done,
        "retried": one.retried,
        "waiting": one.waiting,
        "held": one.held,
        "dead_lettered": one.failed,
        "owed": one.owed,
    }
