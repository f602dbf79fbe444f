"""What the project's folder and the environment say, held against each other. Nothing is sent anywhere."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runonce.errors import RunonceError, SettingsError
from runonce.hosts.doctor.findings import Check, Finding
from runonce.hosts.functions.host_json import check_host_json
from runonce.hosts.functions.startup import check_zone, left_out, threads, without
from runonce.hosts.manifest import RECOVERY, REQUESTS, make_manifest
from runonce.hosts.runtime import check_transport
from runonce.messages.definition import REPLAY_HORIZON
from runonce.schedules.nights import nights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from runonce.execution.options import Retry
    from runonce.hosts.discover import Discovered
    from runonce.hosts.runtime import Runtime
    from runonce.settings import Settings

SETTINGS = (
    *(
        "STORAGE",
        "NAMESPACE",
        "JOBS",
        "LEASES",
        "LEASE_DURATION",
        "LEASE_RENEWAL",
        "LEASE_MARGIN",
        "RECOVERY_INTERVAL",
        "LEADER",
    ),
    *("MISFIRE_GRACE", "HISTORY_DAYS", "SERVICEBUS", "TRANSPORT", "QUEUE_NAMES", "CLAIM_LEASE", "MAX_BODY"),
    *("SHUTDOWN_TIMEOUT", "DEPLOYMENT", "DASHBOARD", "NOTIFY_URL", "TELEMETRY", "LOG"),
)
"""All there are, after RUNONCE_."""
CONNECTIONS = ("RUNONCE_STORAGE__", "RUNONCE_SERVICEBUS__")
NEAR = 0.85
"""How much alike a name is that is taken for a slip."""
MANIFEST = "infra/jobs.json"
ISO = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Project:
    """What there is to look at."""

    root: Path
    environ: Mapping[str, str]
    found: Discovered
    settings: Settings | None
    """None where they are wrong."""
    now: datetime


def settings(runtime: Runtime) -> Check:
    """Whether every setting is a right one, and is a setting."""
    findings = [
        Finding(f"{name} is no setting of runonce, and nothing reads it: write {meant}, or remove it.")
        for name in sorted(runtime.environ)
        if name.startswith("RUNONCE_") and not name.startswith(CONNECTIONS) and (meant := _meant(name))
    ]
    if (zone := runtime.environ.get("WEBSITE_TIME_ZONE", "")).upper() not in ("", "UTC"):
        findings.append(
            Finding(
                f"WEBSITE_TIME_ZONE={zone!r} moves every timer of the Functions host, so that jobs would be missed or "
                f"run late: remove it, and give each job its time_zone."
            )
        )
    try:
        _ = runtime.settings
    except RunonceError as error:
        findings.append(Finding(str(error)))
    return Check("settings", "the environment's", tuple(findings))


def _meant(name: str) -> str:
    known = [f"RUNONCE_{one}" for one in SETTINGS]
    if name in known:
        return ""
    return next(iter(difflib.get_close_matches(name, known, 1, NEAR)), "")


def files(found: Discovered) -> Check:
    """Whether every job file loads, and its definitions can be beside each other."""
    broken = [Finding(str(error)) for error in found.broken]
    if not (broken or found.jobs or found.handlers or found.every):
        broken = [
            Finding(
                "no file of the jobs folder defines a job or a handler: put one there, or name another folder in "
                "RUNONCE_JOBS.",
                must_mend=False,
            )
        ]
    return Check("job files", "that each loads", tuple(broken))


def checks(at: Project) -> Iterator[Check]:
    """All of them."""
    jobs = sorted(at.found.jobs.values(), key=lambda job: job.name)
    odd = [
        Finding(
            f"Job {job.name!r}: {night.text} ({'; '.join(dict.fromkeys(night.oddities))}). If that is not meant, "
            f'choose another time, or time_zone="UTC".',
            must_mend=False,
        )
        for job in jobs
        for night in nights(job.schedule, at.now)
        if night.oddities
    ]
    yield Check("schedules", "when clocks change, in the next year", tuple(odd))
    if at.settings is not None and at.found.handlers:
        yield Check("queues", "their names", tuple(_names(at, at.settings)))
    if (at.root / "host.json").is_file() or (at.root / "function_app.py").is_file():
        yield Check("host.json", "against jobs, handlers and settings", tuple(_functions(at)))
    if (at.root / MANIFEST).is_file():
        yield from _manifest(at)


def _names(at: Project, settings: Settings) -> Iterator[Finding]:
    for handler in at.found.handlers.values():
        try:
            check_transport(settings, handler)
        except SettingsError as error:
            yield Finding(str(error))


def _functions(at: Project) -> Iterator[Finding]:
    found, environ = at.found, at.environ
    transport = "storage" if at.settings is None else at.settings.transport
    try:
        text = (at.root / "host.json").read_text(encoding="utf-8-sig")
        for one in check_host_json(text, environ, found.jobs.values(), found.handlers.values(), transport):
            yield Finding(one.text)
    except (OSError, UnicodeDecodeError) as error:
        yield Finding(
            f"host.json cannot be read ({error}), and the Functions host does not start without it: write it anew, as "
            f"`runonce init` does."
        )
    try:
        check_zone(environ)
    except SettingsError as error:
        yield Finding(str(error))
    for said in threads(environ, len(found.jobs) + 1):  # and the one that purges
        yield Finding(said)
    names = [*found.jobs, *(name for one in found.handlers.values() for name in one.function_names)]
    for name, setting in left_out(environ, [*names, RECOVERY, REQUESTS]).items():
        yield Finding(
            f"{without(name, setting, found.jobs)} Remove the setting if that is not meant.",
            must_mend=name in (RECOVERY, REQUESTS),
        )


# -- infra/jobs.json --------------------------------------------------------------------------------------------


def _manifest(at: Project) -> Iterator[Check]:
    try:
        deployed = json.loads((at.root / MANIFEST).read_text(encoding="utf-8"))
        handlers = {str(one["name"]): dict(one) for one in deployed["handlers"]}
        jobs = {str(one["name"]): dict(one) for one in deployed["jobs"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        unreadable = f"{MANIFEST} cannot be read ({type(error).__name__}: {error}): run `runonce manifest`."
        yield Check("infra/jobs.json", "against the code", (Finding(unreadable),))
        return
    if not at.found.broken:
        yield Check("infra/jobs.json", "against the code", tuple(_differences(at, deployed, jobs, handlers)))
    yield Check("infra/jobs.json", "times to live and windows", tuple(_times(at, handlers)))


def _differences(
    at: Project, deployed: dict[str, Any], jobs: dict[str, Any], handlers: dict[str, Any]
) -> Iterator[Finding]:
    made = make_manifest(at.found, at.now)
    for kind, there in (("job", jobs), ("handler", handlers)):
        here = {one["name"]: one for one in made[f"{kind}s"]}
        missing, left = sorted(set(here) - set(there)), sorted(set(there) - set(here))
        if missing:
            yield _stale(f"lacks the {kind}s {_some(missing)}, which would get no timer and no queue")
        if left:
            yield _stale(f"has the {kind}s {_some(left)}, which the code no longer has")
        for name in sorted(set(here) & set(there)):
            keys = [key for key in here[name] if here[name][key] != there[name].get(key)]
            if keys:
                key = keys[0]
                more = f", and {len(keys) - 1} more keys differ" if keys[1:] else ""
                yield _stale(
                    f"says {key}={there[name].get(key)!r} of {name}, and the code {here[name][key]!r}{more}"
                )
    rest = [key for key in made if key not in ("jobs", "handlers") and made[key] != deployed.get(key)]
    if rest:
        yield _stale(f"differs in {_some(rest)}")


def _stale(what: str) -> Finding:
    return Finding(f"{MANIFEST} {what}: run `runonce manifest`, and deploy.")


def _times(at: Project, handlers: dict[str, dict[str, Any]]) -> Iterator[Finding]:
    """How long a message can come again, against how long its claim is kept and its retries take."""
    for handler in sorted(at.found.handlers.values(), key=lambda one: one.name):
        told = handlers.get(handler.name, {})
        life = _seconds(told.get("default_ttl"))
        if life is None:
            continue
        kept = handler.retention
        if kept < life + REPLAY_HORIZON.total_seconds():
            yield Finding(
                f"Handler {handler.name!r}: its claims are kept for {_days(kept)} (retention), and {MANIFEST} lets a "
                f"message live for {_days(life)} (default_ttl); one that is replayed within {REPLAY_HORIZON.days} days "
                f"after that would be taken for a new one. Raise retention to "
                f"{_days(life + REPLAY_HORIZON.total_seconds())}, or lower default_ttl."
            )
        if (span := _span(handler.retry)) > life:
            yield Finding(
                f"Handler {handler.name!r}: retries={handler.retry.retries} with retry_delay="
                f"{handler.retry.delay:g} s go on for {_days(span)}, and {MANIFEST} lets a message live for "
                f"{_days(life)} (default_ttl), so the last of them never take place. Lower retries or retry_delay."
            )
        window = _seconds(told.get("duplicate_detection_window"))
        if window is not None and at.settings is not None and window < at.settings.claim_lease:
            yield Finding(
                f"Handler {handler.name!r}: the broker knows a repeated id for {window:g} s "
                f"(duplicate_detection_window in {MANIFEST}), and what a dead host had sent is sent again under the "
                f"same ids after RUNONCE_CLAIM_LEASE={at.settings.claim_lease} s, so each comes twice, and only its "
                f"claim turns it away. Lower RUNONCE_CLAIM_LEASE, or deploy a longer window."
            )


def _span(retry: Retry) -> float:
    """Seconds from the first failure to the last retry."""
    return sum(retry.wait(failures, spread=lambda: 0.5) for failures in range(1, retry.retries + 1))


def _seconds(duration: object) -> float | None:
    match = ISO.fullmatch(str(duration))
    if match is None:
        return None  # then it differs from the code's
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _days(seconds: float) -> str:
    return f"{seconds / 86_400:.4g} days"


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
