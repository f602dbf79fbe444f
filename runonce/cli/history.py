"""The command that shows what became of a job's runs or a handler's messages: history."""

import textwrap
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from runonce.cli import output, times
from runonce.cli.app import LOOK, Json, command, names_of
from runonce.cli.context import Context
from runonce.cli.which import read_fire_time
from runonce.errors import InputError
from runonce.hosts import facts
from runonce.messages import status as messages
from runonce.messages.rows import MessageRow
from runonce.runs import status as report
from runonce.runs.parameters import parameters_json
from runonce.runs.rows import Outcome, RunRow
from runonce.runs.table import read_job, read_jobs

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The job's or handler's name.", autocompletion=names_of),
]


@command(
    LOOK,
    "runonce history nightly_report",
    "runonce history nightly_report -n 1 --attempts --json",
    "runonce history nightly_report --at 2026-11-29T00:00:00Z",
    "runonce history send_invoice --key 2026-0117",
)
def history(
    ctx: typer.Context,
    name: Name,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1000, help="How many fire times or messages.")
    ] = 20,
    attempts: Annotated[bool, typer.Option("--attempts", help="Also show earlier attempts.")] = False,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="INSTANT", help="All of one fire time: each attempt's traceback too."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="All of one key of a handler.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what became of a job's latest fire times or a handler's latest messages, or all that is known of one.

    A handler need not be in the code: its claims are looked at. No message's body is shown.
    """
    context = Context.of(ctx)
    if key is None and _is_job(context, name):
        _of_job(context, name, count, at, attempts=attempts, as_json=as_json)
        return
    handler = facts.handler_of(context.runtime, name)
    if handler is None:
        known = {*context.runtime.found.jobs, *context.runtime.found.handlers}
        known |= {*read_jobs(context.runtime.runs).rows, *messages.known_handlers(context.runtime.claims)}
        raise context.unknown(name, list(known))
    if at is not None:
        raise typer.BadParameter(f"{name} is a handler, whose messages have keys: --key", param_hint="--at")
    claims, now = context.runtime.claims, context.runtime.clock.now()
    if key is None:
        rows = messages.message_history(claims, name, count, now)
    else:
        rows = messages.key_history(claims, name, key, handler.entity)
        if not rows:
            raise InputError(
                f"{name} has no claim of key {key!r}: no such message was begun, or its claim's retention is over; "
                f"`runonce history {name}` lists those it has."
            )
    if as_json:
        output.print_json({"handler": name, "messages": [_message_json(row) for row in rows]})
    elif key is not None:
        for row in rows:
            _print_message(row)
    elif rows:
        output.console().print(_messages_table(rows, now, attempts=attempts))
    else:
        output.note(f"no message of {name} was begun yet, or the claims' retention is over")


def _is_job(context: Context, name: str) -> bool:
    found = context.runtime.found
    if name in found.jobs or name in found.handlers:
        return name in found.jobs
    return read_job(context.runtime.runs, name)[1] is not None or name in context.runtime.jobs


# -- a job ------------------------------------------------------------------------------------------------------


def _of_job(
    context: Context, name: str, count: int, at: str | None, *, attempts: bool, as_json: bool
) -> None:
    dispatcher, now = context.runtime.dispatcher, context.runtime.clock.now()
    if at is None:
        runs = report.history(dispatcher, name, count)
    else:
        fire_time = read_fire_time(context.runtime.jobs.get(name), at)
        runs = report.runs_at(dispatcher, name, fire_time)
        if not runs:
            message = f"{name} has no run at {times.to_utc(fire_time)}; `runonce history {name}` lists those it has."
            raise InputError(message)
    if as_json:
        output.print_json({"job": name, "runs": [_run_json(run, whole=at is not None) for run in runs]})
    elif at is not None:
        for run in runs:
            _print_run(run, now)
    elif runs:
        console = output.console()
        console.print(_runs_table(runs, now, attempts=attempts, wide=console.width >= output.WIDE))
    else:
        output.note(f"{name} has not run yet; `runonce run {name}` runs it now, here")


def _print_run(run: RunRow, now: datetime) -> None:
    """Everything a row says, line by line; control characters are shown, as in tables."""
    lines = [
        f"{run.job} {times.to_utc(run.fire_time)}: {run.outcome}, attempt {run.attempt}, took {_took(run, now)}",
        f"  idempotency key {run.idempotency_key}, fencing token {run.token}",
    ]
    if run.params:
        lines.append(f"  parameters {run.params}")
    lines += [f"  {what}" for what in (_why(run, whole=True), *run.decisions) if what]
    if run.steps:
        lines.append(output.short(f"  steps done: {', '.join(run.steps)}", 1000))
    if run.checkpoint:
        lines.append(f"  checkpoint {output.short(run.checkpoint, 1000)}")
    if run.attempt > len(run.attempts) + 1:
        lines.append("  the newest attempts are kept:")
    for attempt in report.attempts(run):
        lines += _attempt_lines(attempt, now)
    typer.echo(output.styled(("\n".join(lines), "")).plain)


def _attempt_lines(one: report.Attempt, now: datetime) -> list[str]:
    if not one.attempt:
        return [f"  skipped before: {one.reason}"] if one.reason else []
    ended = one.finished_at
    took = "-" if one.started_at is None else times.to_span((ended or now) - one.started_at)
    began = "" if one.started_at is None else f", began {times.to_utc(one.started_at)}"
    reason = f": {one.reason}" if one.reason else ""
    person = f" ({one.asked_by})" if one.by == "hand" and one.asked_by else ""
    by = f", by {one.by}{person}" if one.by else ""
    where = f"{one.outcome} on {one.host or '-'}{began}, took {took}{by}, token {one.token}"
    lines = ["", f"  attempt {one.attempt}: {where}{reason}"]
    if one.why or (one.asked_by and not person):
        said = report.began(one.why)
        who = f"; asked for by {one.asked_by}" if one.asked_by and not person else ""
        when = f" at {times.to_utc(one.asked_at)}" if one.asked_at is not None else ""
        lines.append(f"    {said}{who}{when}")
    return [*lines, *([textwrap.indent(one.error.rstrip(), "    ")] if one.error else [])]


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
        for earlier in reversed(report.attempts(run)[:-1]) if attempts else ():
            took = "-" if earlier.seconds is None else times.to_span(earlier.seconds)
            made.add_row(
                "",
                _outcome(earlier.outcome),
                str(earlier.attempt or "-"),
                took,
                *_where_and_why(earlier.host, earlier.reason, wide=wide),
            )
    return made


def _why(run: RunRow, *, whole: bool = False) -> str:
    replayed = (
        f"replayed {run.generation} times; " if run.generation > 1 else "replayed; " if run.generation else ""
    )
    retried = (
        f"; due again at {times.to_utc(run.retry_at)}" if run.retry_at and not run.outcome.is_final else ""
    )
    done = ", ".join(f"{count} {name} done" for name, count in run.progress.items())
    unfinished = f"; {done}" if done and (whole or run.outcome is not Outcome.SUCCEEDED) else ""
    decided = f"; {run.decisions[-1]}" if run.decisions and not whole else ""
    given = f"with {run.params}; " if run.params and not whole else ""
    reason = "" if whole else output.short(run.reason, 400)
    return f"{given}{replayed}{reason}{retried}{unfinished}{decided}".strip("; ")


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


def _run_json(run: RunRow, *, whole: bool) -> dict[str, Any]:
    took: timedelta | None = run.finished_at - run.started_at if run.finished_at and run.started_at else None
    shown = {
        "fire_time": run.fire_time,
        "outcome": run.outcome,
        "reason": run.reason,
        "attempt": run.attempt,
        "by": run.by,
        "why": run.why,
        "asked_by": run.asked_by,
        "asked_at": run.asked_at,
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
        "attempts": report.attempts(run)[:-1],
    }
    if whole:
        shown |= {
            "idempotency_key": run.idempotency_key,
            "checkpoint": run.checkpoint,
            "steps": list(run.steps),
        }
    return shown


# -- a handler --------------------------------------------------------------------------------------------------


def _messages_table(rows: Sequence[MessageRow], now: datetime, *, attempts: bool) -> Any:
    made = output.table("Key", "State", "Attempt", "Began", "Where and why")
    made.columns[2].justify = "right"
    for row in rows:
        made.add_row(
            output.styled((row.key, "bold")),
            _state(row.state),
            str(row.attempt),
            "-" if row.started_at is None else times.from_now(row.started_at, now),
            *_where_and_why(row.host, _why_message(row), wide=False),
        )
        for earlier in reversed(messages.attempts(row)[:-1]) if attempts else ():
            began = "-" if earlier.started_at is None else times.from_now(earlier.started_at, now)
            made.add_row(
                "",
                _state(earlier.outcome),
                str(earlier.attempt),
                began,
                *_where_and_why(earlier.host, earlier.reason, wide=False),
            )
    return made


def _why_message(row: MessageRow) -> str:
    due = f"; due again at {times.to_utc(row.retry_at)}" if row.retry_at is not None else ""
    replayed = f"begun anew {row.generation} times; " if row.generation else ""
    return f"{replayed}{output.short(row.reason, 300)}{due}".strip("; ")


STYLES = {"done": "green", "failed": "red", "unknown": "red", "claimed": "cyan", "released": "yellow"}


def _state(state: str) -> Any:
    said = {"claimed": "running", "released": "retrying"}.get(state, state)
    return output.styled((said, STYLES.get(state, "yellow")))


def _print_message(row: MessageRow) -> None:
    state = {"claimed": "running", "released": "retrying"}.get(row.state, str(row.state))
    lines = [
        f"{row.handler} {row.key}: {state}, attempt {row.attempt}",
        f"  message {row.message_id} of {row.entity}, idempotency key {row.idempotency_key}",
    ]
    if row.retry_at is not None:
        lines.append(f"  due again at {times.to_utc(row.retry_at)}")
    if row.progress:
        lines.append("  " + ", ".join(f"{count} {name} done" for name, count in row.progress.items()))
    if row.steps:
        lines.append(output.short(f"  steps done: {', '.join(row.steps)}", 1000))
    if row.checkpoint:
        lines.append(f"  checkpoint {output.short(row.checkpoint, 1000)}")
    lines += [f"  begun anew at {at}" for at in row.replays]
    if row.expires_at is not None:
        lines.append(f"  kept until {times.to_utc(row.expires_at)}")
    for one in messages.attempts(row):
        ended = "" if one.finished_at is None else f", ended {times.to_utc(one.finished_at)}"
        began = "" if one.started_at is None else f", began {times.to_utc(one.started_at)}"
        said = f": {one.reason}" if one.reason else ""
        lines += [
            "",
            f"  attempt {one.attempt}: {one.outcome} on {one.host or '-'}{began}{ended}, token {one.token}{said}",
        ]
        lines += [textwrap.indent(one.error.rstrip(), "    ")] if one.error else []
    typer.echo(output.styled(("\n".join(lines), "")).plain)


def _message_json(row: MessageRow) -> dict[str, Any]:
    return {
        "key": row.key,
        "message_id": row.message_id,
        "entity": row.entity,
        "state": row.state,
        "reason": row.reason,
        "attempt": row.attempt,
        "failures": row.failures,
        "abandoned": row.abandoned,
        "replays": list(row.replays),
        "host": row.host,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "retry_at": row.retry_at,
        "expires_at": row.expires_at,
        "fencing_token": row.token,
        "idempotency_key": row.idempotency_key,
        "progress": row.progress,
        "steps": list(row.steps),
        "error": row.error,
        "attempts": messages.attempts(row)[:-1],
    }
