"""What is done: the command line's verbs as forms. Each says who did it, and leads back to a page that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from runonce.errors import InputError
from runonce.hosts import facts
from runonce.hosts.dashboard.pages import NotThere, instant
from runonce.hosts.dashboard.words import utc
from runonce.hosts.runtime import check_transport
from runonce.messages.replaying import replay_wanted
from runonce.runs import backfill as ranges
from runonce.runs import decide, operate
from runonce.runs.trail import Action, note
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.hosts.dashboard.pages import Asked
    from runonce.hosts.runtime import Runtime
    from runonce.runs.definition import ScheduledJob

    Do = Callable[[Asked], tuple[str, str]]
    """Gives the page to show, and what to say there."""

MOST_AT_ONCE = 100
"""Fire times that one form asks for."""
PARAMETER = "param:"


def run(asked: Asked) -> tuple[str, str]:
    """Ask the running hosts for a fire time, with parameters if any are given; without a time for now."""
    job = _defined(asked.runtime, asked.path["job"])
    given = {
        name.removeprefix(PARAMETER): value
        for name, value in asked.form.items()
        if name.startswith(PARAMETER) and value
    }
    at = (
        instant(asked.form["at"])
        if asked.form.get("at")
        else asked.runtime.clock.now().replace(microsecond=0)
    )
    if asked.form.get("at") and job.schedule.previous(at) != at and asked.form.get("anyway") != "yes":
        raise InputError(
            f"The schedule of {job.name} does not name {utc(at)}; tick the box to run it anyway."
        )
    operate.ask(asked.runtime.dispatcher, job, at, job.params(given), asked.who)
    return _job_page(job.name), f"{job.name} is asked for, for {utc(at)}; the first free host runs it."


def backfill(asked: Asked) -> tuple[str, str]:
    """Ask for each fire time of a range that is not done, the oldest first; first only say which."""
    job = _defined(asked.runtime, asked.path["job"])
    since, until = instant(asked.form.get("from", "")), instant(asked.form.get("to", ""))
    known = ranges.to_backfill(asked.runtime.dispatcher, job, since, until)
    left = [fire_time for fire_time, outcome in known if not ranges.is_done(outcome)]
    if asked.form.get("sure") != "yes":
        listed = ", ".join(utc(one) for one in left[:5]) + (" ..." if len(left) > 5 else "")  # noqa: PLR2004
        return _job_page(
            job.name
        ), f"A backfill would run {len(left)} of {len(known)} fire times: {listed or 'none'}"
    if len(left) > MOST_AT_ONCE:
        raise InputError(
            f"{len(left)} fire times are more than a form asks for at once ({MOST_AT_ONCE}); take a shorter range, or "
            f"`runonce backfill {job.name} --from {to_text(since)} --to {to_text(until)}`."
        )
    for fire_time in left:
        operate.ask(asked.runtime.dispatcher, job, fire_time, "", asked.who)
    return _job_page(job.name), f"{len(left)} fire times are asked for, the oldest first."


def pause(asked: Asked) -> tuple[str, str]:
    """Start no more runs."""
    operate.pause(asked.runtime.dispatcher, asked.path["job"], asked.form.get("why", ""), asked.who)
    return _job_page(asked.path["job"]), f"{asked.path['job']} is paused."


def resume(asked: Asked) -> tuple[str, str]:
    """Start runs again."""
    operate.resume(asked.runtime.dispatcher, asked.path["job"], asked.form.get("why", ""), asked.who)
    return _job_page(asked.path["job"]), f"{asked.path['job']} is resumed."


def break_lease(asked: Asked) -> tuple[str, str]:
    """Take the lease away from a host that hangs; the name has to be typed."""
    name = asked.path["job"]
    if asked.form.get("name") != name:
        raise InputError(f"Type the job's name, {name}, to break its lease.")
    broken = asked.runtime.stores.leases.break_lease(asked.runtime.runs.lock_name(name))
    if broken:
        note(
            asked.runtime.runs,
            Action(asked.runtime.clock.now(), asked.who, "broke lease", name, "", asked.form.get("why", "")),
        )
    said = (
        f"The lease of {name} is broken."
        if broken
        else f"Nobody held the lease of {name}; nothing was broken."
    )
    return _job_page(name), said


def decided(verb: str) -> Do:
    """What an operator decides about one run."""

    def do(asked: Asked) -> tuple[str, str]:
        at = instant(asked.path["fire_time"])
        which = decide.Which(
            asked.path["job"], at, asked.form.get("params", ""), asked.who, asked.form.get("why", "")
        )
        if verb in ("cancel", "mark-done", "mark-failed") and not which.why:
            raise InputError("Say why: it stays on the run's record.")
        if verb == "resume-run":
            decide.resume_run(asked.runtime.dispatcher, which)
        elif verb == "replay":
            decide.replay(asked.runtime.dispatcher, which)
        elif verb == "cancel":
            decide.cancel(asked.runtime.dispatcher, which)
        else:
            decide.mark(asked.runtime.dispatcher, which, "done" if verb == "mark-done" else "failed")
        if verb in ("resume-run", "replay"):
            decide.send(asked.runtime.dispatcher, which)
        page = f"{_job_page(asked.path['job'])}/runs/{quote(to_text(at))}"
        page += f"?{urlencode({'params': which.params})}" if which.params else ""
        return page, SAID[verb].format(at=utc(at))

    return do


SAID = {
    "resume-run": "It goes on from its checkpoint: the first free host takes it up.",
    "replay": "It runs again from its beginning, under another idempotency key.",
    "cancel": "It is cancelled: nothing takes it up again.",
    "mark-done": "It counts as done.",
    "mark-failed": "It counts as failed.",
}


def replay_dead_letters(asked: Asked) -> tuple[str, str]:
    """Send a handler's dead letters through again: the one named, or all but those that may repeat an effect."""
    name, wanted = asked.path["handler"], asked.form.get("id", "")
    handler = facts.handler_of(asked.runtime, name)
    if handler is None:
        raise NotThere(f"There is no handler {name!r}, in the code or among the claims.")
    check_transport(asked.runtime.settings, handler)
    letters = asked.runtime.transport.dead_letters(handler)
    try:
        worked = replay_wanted(
            asked.runtime.claims, asked.runtime.sender, handler, letters, {wanted} if wanted else None
        )
    finally:
        letters.close()
    if worked.done:
        about = wanted or f"{len(worked.done)} dead letters"
        note(
            asked.runtime.runs,
            Action(asked.runtime.clock.now(), asked.who, "replayed", name, about, asked.form.get("why", "")),
        )
    said = f"{len(worked.done)} replayed"
    if worked.left_out:
        said += f"; {len(worked.left_out)} left out, whose effect may have happened: replay them one by one"
    if worked.refused:
        said += f"; {len(worked.refused)} refused: {next(iter(worked.refused.values()))}"
    return "/dead-letters", f"{name}: {said}."


def _defined(runtime: Runtime, name: str) -> ScheduledJob:
    job = runtime.dispatcher.jobs.get(name)
    if job is None:
        raise NotThere(f"No job file defines {name!r}.")
    return job


def _job_page(name: str) -> str:
    return f"/jobs/{quote(name, safe='')}"


RUN = "/jobs/{job}/runs/{fire_time}"
ROUTES: dict[str, Do] = {
    "/jobs/{job}/run": run,
    "/jobs/{job}/backfill": backfill,
    "/jobs/{job}/pause": pause,
    "/jobs/{job}/resume": resume,
    "/jobs/{job}/break-lease": break_lease,
    **{f"{RUN}/{verb}": decided(verb) for verb in SAID},
    "/dead-letters/{handler}/replay": replay_dead_letters,
}
