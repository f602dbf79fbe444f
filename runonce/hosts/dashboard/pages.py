"""What is looked at: each page's facts, read when it is asked for. The calls of a page do not grow with its history."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from runonce.hosts import facts
from runonce.hosts.dashboard import pictures, words
from runonce.hosts.dashboard.lines import lines
from runonce.messages import status as of_messages
from runonce.runs.accounts import audit_since
from runonce.runs.parameters import parameters_json
from runonce.runs.rows import Outcome, decode_run, run_key
from runonce.runs.status import attempts, history, job_statuses, runs_at
from runonce.runs.trail import actions
from runonce.schedules.nights import nights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runonce.hosts.runtime import Runtime
    from runonce.runs.rows import RunRow
    from runonce.runs.status import JobStatus

    Page = Callable[["Asked"], tuple[str, dict[str, Any]]]

DAY = timedelta(days=1)
MOST_LANES = 8
"""Jobs on the overview's timeline, the worst first: each is one call."""
LANE_RUNS = 100
"""The newest of a job that are on the overview's timeline."""
HISTORY = 100
AT_ONCE = 8
FAILED = {Outcome.FAILED, Outcome.UNKNOWN, Outcome.ABANDONED}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page is asked for, or a form says."""

    runtime: Runtime
    path: Mapping[str, str]
    """The parts of the address."""
    query: Mapping[str, str]
    who: str = ""
    form: Mapping[str, str] = field(default_factory=dict)


class NotThere(Exception):  # noqa: N818 - what the page says
    """Nothing is known under that address."""


def overview(asked: Asked) -> tuple[str, dict[str, Any]]:
    """What is wrong first, the hosts, the jobs, the handlers, and the last day as a picture."""
    looked = facts.overview(asked.runtime)
    now = looked.looked_at
    shown = looked.jobs[:MOST_LANES]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(pool.map(lambda job: _since(asked.runtime, job.name, now - DAY, now), shown))
    return "overview.html", {
        "looked": looked,
        "now": now,
        "alive": [host for host in looked.hosts if host.is_alive],
        "troubled": [job for job in looked.jobs if job.trouble],
        "troubled_handlers": [one for one in looked.handlers if one.trouble],
        "picture": pictures.timeline(list(zip(shown, runs, strict=True)), now - DAY, now, LANE_RUNS),
        "more_lanes": len(looked.jobs) - len(shown),
    }


def job(asked: Asked) -> tuple[str, dict[str, Any]]:
    """One job: its schedule in words, what is to come, its history and how long it took."""
    name, now = asked.path["job"], asked.runtime.clock.now()
    status = _job(asked.runtime, name)
    runs = history(asked.runtime.dispatcher, name, HISTORY)
    defined = asked.runtime.dispatcher.jobs.get(name)
    only = asked.query.get("outcome", "")
    recent = [run for run in runs if (run.finished_at or run.fire_time) > now - DAY]
    ended = [run for run in runs if run.outcome in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.UNKNOWN)]
    succeeded = [run for run in ended if run.outcome is Outcome.SUCCEEDED]
    took = sorted(
        (run.finished_at - run.started_at).total_seconds()
        for run in succeeded
        if run.finished_at and run.started_at
    )
    return "job.html", {
        "job": status,
        "now": now,
        "defined": defined,
        "explained": "" if defined is None else words.explained(defined.schedule.expression),
        "oddities": [] if defined is None else [night.text for night in nights(defined.schedule, now)],
        "coming": [] if defined is None else list(defined.schedule.fire_times(now, now + 400 * DAY, limit=5)),
        "runs": [run for run in runs if only in ("", run.outcome)],
        "only": only,
        "outcomes": [outcome.value for outcome in Outcome],
        "picture": pictures.timeline([(status, recent)], now - DAY, now, HISTORY),
        "bars": pictures.durations(succeeded[:60]),
        "rate": None if not ended else round(100 * len(succeeded) / len(ended)),
        "p95": took[min(len(took) - 1, int(len(took) * 0.95))] if took else None,
        "judged": len(ended),
        "trail": actions(asked.runtime.runs, 10, name),
    }


def run(asked: Asked) -> tuple[str, dict[str, Any]]:
    """One run: every attempt with its traceback, progress, tokens, decisions, and its lines in this process's log."""
    name, fire_time = asked.path["job"], instant(asked.path["fire_time"])
    found = runs_at(asked.runtime.dispatcher, name, fire_time)
    wanted = asked.query.get("params", "")
    shown = next((one for one in found if one.params == wanted), None)
    if shown is None:
        raise NotThere(f"Nothing is on record of {name} at {words.utc(fire_time)}.")
    return "run.html", {
        "run": shown,
        "others": [one for one in found if one is not shown],
        "attempts": list(reversed(attempts(shown))),
        "parameters": parameters_json(shown.params),
        "checkpoint": _pretty(shown.checkpoint),
        "now": asked.runtime.clock.now(),
        "lines": lines.of(f"{name} {fire_time:%Y-%m-%dT%H:%M:%SZ}"),
        "is_here": shown.host == asked.runtime.host,
    }


def handler(asked: Asked) -> tuple[str, dict[str, Any]]:
    """One handler: what waits, its latest messages, and one key's whole history where a key is asked for."""
    name, key, now = asked.path["handler"], asked.query.get("key", ""), asked.runtime.clock.now()
    status = next((one for one in facts.handlers(asked.runtime) if one.name == name), None)
    if status is None:
        raise NotThere(f"There is no handler {name!r}, in the code or among the claims.")
    if key:
        rows = of_messages.key_history(asked.runtime.claims, name, key, status.entity)
    else:
        rows = of_messages.message_history(asked.runtime.claims, name, HISTORY, now)
    hour = [row for row in rows if row.started_at is not None and row.started_at > now - timedelta(hours=1)]
    return "handler.html", {
        "handler": status,
        "now": now,
        "key": key,
        "rows": [(row, of_messages.attempts(row)) for row in rows],
        "last_hour": f"{HISTORY} or more" if len(hour) == HISTORY else len(hour),
    }


def dead_letters(asked: Asked) -> tuple[str, dict[str, Any]]:
    """The dead letters of every handler, by reason."""
    names = [asked.query["handler"]] if asked.query.get("handler") else []
    return "dead_letters.html", {
        "found": facts.dead_letters(asked.runtime, names),
        "now": asked.runtime.clock.now(),
    }


def held(asked: Asked) -> tuple[str, dict[str, Any]]:
    """What waits for a person to say whether it took effect."""
    runs, messages = facts.held(asked.runtime)
    return "held.html", {"runs": runs, "messages": messages, "now": asked.runtime.clock.now()}


def audit(asked: Asked) -> tuple[str, dict[str, Any]]:
    """Whether every expected fire time ran, and every message was handled."""
    days = {"1": 1, "7": 7, "30": 30}.get(asked.query.get("days", ""), 1)
    since = asked.runtime.clock.now() - days * DAY
    return "audit.html", {
        "jobs": audit_since(asked.runtime.dispatcher, since),
        "handlers": of_messages.audit_messages(asked.runtime.claims, since),
        "days": days,
        "now": asked.runtime.clock.now(),
    }


def trail(asked: Asked) -> tuple[str, dict[str, Any]]:
    """Who did what."""
    return "trail.html", {"trail": actions(asked.runtime.runs, 200), "now": asked.runtime.clock.now()}


def break_lease(asked: Asked) -> tuple[str, dict[str, Any]]:
    """Asks once more."""
    status = _job(asked.runtime, asked.path["job"])
    held_now = asked.runtime.stores.leases.held(asked.runtime.runs.lock_name(status.name))
    return "break_lease.html", {"job": status, "held": held_now, "now": asked.runtime.clock.now()}


def instant(text: str) -> datetime:
    """An instant of an address or a form, in UTC; NotThere if it is none."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise NotThere(f"{text!r} is no instant, such as 2026-11-30T03:00:00Z.") from None


def _job(runtime: Runtime, name: str) -> JobStatus:
    status = next((one for one in job_statuses(runtime.dispatcher, runtime.found) if one.name == name), None)
    if status is None:
        raise NotThere(f"There is no job {name!r}, in the code or in the table.")
    return status


def _since(runtime: Runtime, name: str, since: datetime, now: datetime) -> list[RunRow]:
    """Runs of the fire times since an instant, the newest first: one range read."""
    first, last = run_key(name, now + DAY), f"{run_key(name, since)};"
    rows = runtime.runs.table.scan(runtime.runs.namespace, first, last, limit=LANE_RUNS)
    return [decode_run(row) for row in rows]


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


ROUTES: dict[str, Page] = {
    "/": overview,
    "/jobs/{job}": job,
    "/jobs/{job}/break-lease": break_lease,
    "/jobs/{job}/runs/{fire_time}": run,
    "/handlers/{handler}": handler,
    "/dead-letters": dead_letters,
    "/held": held,
    "/audit": audit,
    "/trail": trail,
}
