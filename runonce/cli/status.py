"""The command that says how everything stands: status."""

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from runonce.cli import output, times
from runonce.cli.app import LOOK, Json, command, names_of
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.hosts import facts
from runonce.messages.status import HandlerStatus
from runonce.runs.audit import OVERDUE
from runonce.runs.presence import Host
from runonce.runs.rows import Outcome
from runonce.runs.status import JobStatus, Running

SHOWN = 3
"""Waiting fire times of a job that are shown, and hosts that are gone."""
SHOWN_HOSTS = 8


@command(LOOK, "runonce status", "runonce status nightly_report --json")
def status(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Only this job or handler.", autocompletion=names_of),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show which hosts live, what every job did last, does now and does next, and what waits for each handler.

    All times are UTC. A job is running when its row says so and its lease is held; a run whose lease has expired
    is shown as abandoned, and the next recovery tick takes it over. What is in trouble comes first.

    Ends with 5 when a job file is broken or a job's row cannot be read, else with 1 when something failed or is owed:
    a run, a fire time, dead letters, work that a person has to decide about, or hosts that are all gone; else with 0.
    """
    context = Context.of(ctx)
    looked = facts.overview(context.runtime)
    jobs = [one for one in looked.jobs if name in (None, one.name)]
    handlers = [one for one in looked.handlers if name in (None, one.name)]
    if name is not None and not (jobs or handlers):
        names = [*(one.name for one in looked.jobs), *(one.name for one in looked.handlers)]
        raise context.unknown(name, names)
    all_gone = bool(looked.hosts) and not looked.hosts[0].is_alive
    others = facts.namespaces(context.runtime) if looked.is_empty else []
    if as_json:
        output.print_json(
            {
                "namespace": looked.place.namespace,
                "account": looked.place.account,
                "hosts": [_host_json(one) for one in looked.hosts],
                "jobs": jobs,
                "handlers": handlers,
                "broken_files": looked.broken_files,
                "other_namespaces": others,
            }
        )
    else:
        typer.echo(str(looked.place))
        _say_hosts(looked.hosts)
        _print(context, looked, jobs, handlers)
        if looked.is_empty and others:
            output.note(f"nothing ever ran in this namespace; there are rows of {', '.join(others)}")
    if looked.broken_files or any(one.unreadable for one in jobs):
        raise typer.Exit(Exit.CONFIGURATION)
    if all_gone or any(one.trouble for one in jobs) or any(one.trouble for one in handlers):
        raise typer.Exit(Exit.FAILED)


def _print(
    context: Context, looked: facts.Overview, jobs: list[JobStatus], handlers: list[HandlerStatus]
) -> None:
    console = output.console()
    if jobs:
        console.print(_jobs_table(jobs, looked.looked_at))
    if jobs and handlers:
        console.print()
    if handlers:
        console.print(_handlers_table(handlers, looked.looked_at, context.runtime.settings.queue_prefix))
    if not (jobs or handlers):
        output.note("no file of the jobs folder defines a job, and storage knows of none")
    for one in handlers:
        if one.unreachable:
            output.warn(f"{one.name}: {one.unreachable}")
    output.warn_of_broken(context.runtime.found)


# -- hosts ------------------------------------------------------------------------------------------------------


def _say_hosts(hosts: tuple[Host, ...]) -> None:
    alive = [host for host in hosts if host.is_alive]
    gone = sorted((host for host in hosts if not host.is_alive), key=lambda host: host.seen_ago)
    console = output.console()
    lines: list[tuple[str, str]] = []
    if alive:
        lines.append((f"{len(alive)} host{'s' * (len(alive) != 1)} alive", "green"))
    else:
        lines.append(("no host is alive", "bold red"))
        lines.append((": nothing runs until one does, such as `runonce serve`", ""))
    for host in [*alive[:SHOWN_HOSTS], *gone[:SHOWN]]:
        version = f" {host.version}" if host.version else ""
        jobs = f"{len(host.jobs)} job{'s' * (len(host.jobs) != 1)}"
        seen = f"seen {times.to_span(host.seen_ago)} ago"
        said = "" if host.is_alive else "gone, "
        leads = "leads, " if host.leads and host.is_alive else ""
        lines.append((f"\n  {host.name}", "bold" if host.is_alive else "dim"))
        lines.append(
            (f"  {host.kind}{version}, {leads}{jobs}, {said}{seen}", "" if host.is_alive else "yellow")
        )
    if len(alive) > SHOWN_HOSTS:
        lines.append((f"\n  and {len(alive) - SHOWN_HOSTS} more", ""))
    console.print(output.styled(*lines))
    console.print()


def _host_json(host: Host) -> dict[str, Any]:
    return {
        "name": host.name,
        "kind": host.kind,
        "version": host.version,
        "started": host.started,
        "jobs": host.jobs,
        "last_seen": host.last_seen,
        "seconds_ago": host.seen_ago.total_seconds(),
        "is_alive": host.is_alive,
        "leads": host.leads,
    }


# -- jobs -------------------------------------------------------------------------------------------------------


def _jobs_table(statuses: list[JobStatus], now: datetime) -> Any:
    console = output.console()
    unbounded = console.options.update(max_width=10_000)
    for between in (
        " ",
        "\n",
    ):  # where it is too wide, this instant is put on two lines rather than others folded
        made = output.table("Job", "Now", "Last run", "Next (UTC)")
        for one in statuses:
            made.add_row(_name(one, now), _doing(one, now), _last(one, now), _upcoming(one, now, between))
            made.add_section()
        if console.measure(made, options=unbounded).maximum <= console.width:
            break
    return made


def _name(job: JobStatus, now: datetime) -> Any:
    lines: list[tuple[str, str]] = [(job.name, "bold")]
    if job.unreadable:
        lines.append(("\nits row cannot be read", "red"))
    elif not job.in_code:
        lines.append(("\nnot in the code", "yellow"))
    if job.late_since is not None:
        late = now - job.late_since
        lines.append((f"\n{'overdue' if late > OVERDUE else 'late'} for {times.to_span(late)}", "red"))
    if job.failed_in_a_row > 1:
        lines.append((f"\n{job.failed_in_a_row} failed in a row", "red"))
    lines += [(f"\nswitched off by {one}", "yellow") for one in job.switched_off]
    return output.styled(*lines)


def _doing(job: JobStatus, now: datetime) -> Any:
    lines: list[tuple[str, str]] = []
    if job.running is not None:
        lines += _run_of(job, job.running, now)
    if job.paused_at is not None:
        why = f": {job.paused_why}" if job.paused_why else ""
        lines += [("paused", "yellow"), (f" {times.from_now(job.paused_at, now)}{why}\n", "")]
    for pending in job.pending[:SHOWN]:
        due = "due now" if pending.not_before <= now else f"due {times.from_now(pending.not_before, now)}"
        lines += [
            (pending.why, "yellow"),
            (f", {due}\n", ""),
            (f"{times.to_utc(pending.fire_time)}\n", "dim"),
        ]
    more = max(0, len(job.pending) - SHOWN) + job.more_pending
    if more:
        lines.append((f"and {more:,} more\n", ""))
    text = output.styled(*lines) if lines else output.styled(("idle", "dim"))
    text.rstrip()
    return text


def _run_of(job: JobStatus, running: Running, now: datetime) -> list[tuple[str, str]]:
    took = now - (running.since or now)
    limit = None if running.limit_seconds is None else timedelta(seconds=running.limit_seconds)
    of = "" if job.retries is None or running.attempt > job.retries + 1 else f" of {job.retries + 1}"
    attempt = f", attempt {running.attempt}{of}" if running.attempt else ""
    lines = [("running", "cyan"), (f" for {times.to_span(took)}{attempt}\n", "")]
    if not running.lease_held:
        lines = [("abandoned", "yellow"), (f", began {times.to_span(took)} ago{attempt}\n", "")]
    elif limit is not None and took > limit:
        lines.append((f"over its limit of {times.to_span(limit)}\n", "red"))
    elif limit is not None or running.usual_seconds is not None:
        usual = "" if running.usual_seconds is None else f"usually {times.to_span(running.usual_seconds)}"
        most = "" if limit is None else f"limit {times.to_span(limit)}"
        lines.append((f"{', '.join(part for part in (usual, most) if part)}\n", "dim"))
    if running.progress:
        done = ", ".join(f"{count:,} {name}" for name, count in running.progress.items())
        lines.append((f"{done} done\n", ""))
    return [*lines, (f"{times.to_utc(running.fire_time)}\non {running.host}\n", "dim")]


def _last(job: JobStatus, now: datetime) -> Any:
    if job.last is None:
        return output.styled(("never ran", "dim"))
    ago = "" if job.last.finished_at is None else f" {times.from_now(job.last.finished_at, now)}"
    reason = f"\n{output.short(job.last.reason, 160)}" if job.last.reason else ""
    failed = ", failed" if job.last.outcome == Outcome.RETRYING else ""
    lines = [
        (job.last.outcome, output.STYLES.get(job.last.outcome, "")),
        (f"{failed}{ago}", ""),
        (f"\n{times.to_utc(job.last.fire_time)}", "dim"),
        (reason, ""),
    ]
    earlier = [one for one in job.failures if one.fire_time != job.last.fire_time]
    if earlier:
        unknown = sum(one.outcome is Outcome.UNKNOWN for one in earlier)
        parts = [f"{len(earlier) - unknown} failed"] * (len(earlier) > unknown)
        parts += [f"{unknown} unknown"] * bool(unknown)
        lines.append((f"\n{', '.join(parts)} since {times.to_utc(earlier[0].at)}", "red"))
    if job.joins:
        lines.append((f"\nmessages of {len(job.joins)} waited for", "dim"))
    if job.last.outcome != Outcome.SUCCEEDED:
        success = "never" if job.last_success is None else times.from_now(job.last_success, now)
        lines.append((f"\nlast success: {success}", "dim"))
    return output.styled(*lines)


def _upcoming(job: JobStatus, now: datetime, between: str) -> Any:
    if job.next_fire_time is None or job.paused_at is not None:
        return output.styled(("-", "dim"))
    fire_time = f"{job.next_fire_time:%Y-%m-%d}{between}{job.next_fire_time:%H:%M:%S}"
    return output.styled((fire_time, ""), (f"\n{times.from_now(job.next_fire_time, now)}", "dim"))


# -- handlers ---------------------------------------------------------------------------------------------------


def _handlers_table(statuses: list[HandlerStatus], now: datetime, prefix: str) -> Any:
    made = output.table("Handler", "Waiting", "Running", "Retrying", "Dead", "Oldest")
    for column in made.columns[1:]:
        column.justify = "right"
    for one in statuses:
        remark = "" if one.in_code else "\nnot in the code"
        held = f"\n{one.held} held" if one.held else ""
        dead = one.dead if one.dead is not None else one.failed + one.held
        running = f"{one.running:,}" + (f"\n{one.abandoned} abandoned" if one.abandoned else "")
        made.add_row(
            output.styled(
                (one.name, "bold"), (f"\n{prefix}{one.entity}", "dim"), (remark, "yellow"), (held, "red")
            ),
            _counted(one.waiting, one.at_least),
            running,
            f"{one.retrying:,}",
            output.styled((_counted(dead, one.at_least), "red" if dead else "")),
            "-" if one.oldest is None else times.from_now(one.oldest, now),
        )
        made.add_section()
    return made


def _counted(count: int | None, at_least: bool) -> str:
    return "?" if count is None else f"{count:,}{'+' * at_least}"
