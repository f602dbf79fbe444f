"""What the infrastructure has to know of the jobs, made from the code: `infra/jobs.json`. Pure, no I/O.

Bicep loops over it, so nothing about a job is written twice. Every entry has every key, since Bicep derives an
item's type from the file; what does not apply is an empty text or a 0. Durations are ISO 8601 where Azure takes
them so, else whole seconds. docs/manifest.md explains each key.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any

from runonce.errors import DefinitionError, ScheduleError
from runonce.execution.options import MAX_ABANDONED
from runonce.hosts.clashes import clashes
from runonce.hosts.purge import MAX_RUNTIME
from runonce.schedules.host_cron import container_apps_cron, functions_timer
from runonce.settings import Settings, StorageConnection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runonce.execution.options import Size
    from runonce.hosts.discover import Discovered
    from runonce.messages.definition import Handler
    from runonce.runs.definition import ScheduledJob

VERSION = 1
RECOVERY, REQUESTS = "runonce_recovery", "runonce_requests"
RECOVERY_TIMER, RECOVERY_CRON = "27 * * * * *", "* * * * *"
"""On Functions not at a full minute, when most jobs fire."""

LONGEST_RESOURCE = 28
"""Characters of a Container Apps job's name (32), less the prefix of its kind."""
START_UP = 600
"""Seconds from a fire time until a Container Apps execution must have begun its work: an image is pulled first."""
NO_LIMIT = 86_400
"""Seconds after which the platform ends the execution of a job that has no limit itself; recovery goes on with it."""
JOB_TRIES = 2
"""Times the platform starts a failed execution again. Only what could not be recorded fails, see the exit codes."""
RECOVERY_TRIES = 0
EVENT_TRIES = 1
ROUNDS = 10
"""Full hands of messages that one execution of a handler takes before it ends."""
LONGEST_ROUNDS = 3600

ON_CONTAINER_APPS = {"RUNONCE_SHUTDOWN_TIMEOUT": "20", "RUNONCE_MISFIRE_GRACE": str(START_UP // 2)}
"""Where that host needs other figures: it kills 30 s after SIGTERM, and its executions begin late."""


LOCK = 60
"""Seconds; Service Bus takes at most 300. As long as a message's claim lasts without a sign of life."""
DELIVERIES = 2 * MAX_ABANDONED
"""Twice the dead hosts after which the toolkit itself gives up on a message."""
LIFE = 14 * 86_400
DUPLICATES = 600


def make_manifest(found: Discovered, at: datetime) -> dict[str, Any]:
    """The manifest of the jobs and handlers.

    Args:
        found: What the jobs folder defines.
        at: Aware datetime of now. Its year decides which clock changes are covered, this one's and the two next.

    Raises:
        DefinitionError: Two handlers read the same queue or subscription.
    """
    begin = datetime(at.astimezone(UTC).year, 1, 1, tzinfo=UTC)  # so that it does not change from day to day
    jobs = sorted(found.jobs.values(), key=lambda job: job.name)
    handlers = sorted(found.handlers.values(), key=lambda handler: handler.name)
    for *_, what in clashes([*jobs, *handlers]):
        raise DefinitionError(what)
    resources = resource_names([*(job.name for job in jobs), *(h.name for h in handlers)])
    defaults = Settings("default", StorageConnection())
    return {
        "version": VERSION,
        "jobs": [_job(job, resources[job.name], begin) for job in jobs],
        "handlers": [_handler(handler, resources[handler.name]) for handler in handlers],
        "topics": sorted({h.topic for h in handlers if h.topic is not None}),
        "recovery": {
            "name": RECOVERY,
            "resource": "runonce-recovery",
            "functions_timer": RECOVERY_TIMER,
            "container_apps_cron": RECOVERY_CRON,
            "replica_timeout": max(
                _timeout(limit) for limit in (MAX_RUNTIME, *(job.max_runtime for job in jobs))
            ),
            "replica_retry_limit": RECOVERY_TRIES,
            # It runs in itself what is to be tried again, so it has what the largest of them asks for.
            **_size(max((job.size for job in jobs if job.size), key=lambda size: size.cpu, default=None)),
        },
        "storage": {
            "containers": sorted([defaults.lease_container, defaults.data_container]),
            "tables": sorted([defaults.runs_table, defaults.claims_table]),
            "queue_prefix": defaults.request_queue.partition(defaults.namespace)[0],
            "queue_suffix": defaults.request_queue.partition(defaults.namespace)[2],
        },
        "settings": _settings(defaults),
        "container_apps_settings": dict(sorted(ON_CONTAINER_APPS.items())),
        "duplicate_detection_window": iso(DUPLICATES),
    }


def on_container_apps(found: Discovered, at: datetime) -> list[str]:
    """The names of all that has a job there: `infra/jobs.bicep` leaves out what five fields cannot say."""
    made = make_manifest(found, at)
    jobs = [job["name"] for job in made["jobs"] if job["container_apps_cron"]]
    return [*jobs, *(handler["name"] for handler in made["handlers"]), RECOVERY]


def to_text(manifest: dict[str, Any]) -> str:
    """The file's content."""
    return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


def _settings(defaults: Settings) -> dict[str, str]:
    """Every setting with a default, so that each can be seen and changed where it is deployed."""
    figures: dict[str, object] = {
        "RUNONCE_DASHBOARD": "off",
        "RUNONCE_JOBS": defaults.jobs_folder,
        "RUNONCE_LEASE_DURATION": defaults.lease.duration,
        "RUNONCE_LEASE_RENEWAL": defaults.lease.renewal,
        "RUNONCE_LEASE_MARGIN": defaults.lease.margin,
        "RUNONCE_RECOVERY_INTERVAL": defaults.recovery_interval,
        "RUNONCE_MISFIRE_GRACE": defaults.misfire_grace,
        "RUNONCE_HISTORY_DAYS": defaults.history_days,
        "RUNONCE_CLAIM_LEASE": defaults.claim_lease,
        "RUNONCE_MAX_BODY": defaults.max_body,
        "RUNONCE_SHUTDOWN_TIMEOUT": defaults.shutdown_timeout,
        "RUNONCE_LOG": "text",
        "RUNONCE_TELEMETRY": defaults.watched.telemetry,
    }
    return {
        name: f"{value:.9g}" if isinstance(value, int | float) else str(value)
        for name, value in sorted(figures.items())
    }


def _job(job: ScheduledJob, resource: str, at: datetime) -> dict[str, Any]:
    cron, refusal = "", ""
    schedule = job.schedule
    if job.setting is not None and job.setting.default is not None:
        schedule = job.setting.default  # so that the file is the same on every machine
    try:
        cron = container_apps_cron(schedule, at, job=job.name)
    except ScheduleError as error:
        refusal = str(error)
    return {
        "name": job.name,
        "resource": resource,
        "summary": job.summary,
        "schedule": schedule.expression,
        "schedule_setting": "" if job.setting is None else job.setting.name,
        "time_zone": schedule.time_zone,
        "functions_timer": functions_timer(schedule, at),
        "container_apps_cron": cron,
        "container_apps_refusal": refusal,
        "misfire": job.misfire,
        "max_runtime": ceil(job.max_runtime or 0),
        "retries": job.retry.retries,
        "retry_delay": ceil(job.retry.delay),
        "on_abandoned": job.on_abandoned,
        "replica_timeout": _timeout(job.max_runtime),
        "replica_retry_limit": JOB_TRIES,
        **_size(job.size),
    }


def _handler(handler: Handler, resource: str) -> dict[str, Any]:
    rounds = ROUNDS if not handler.max_runtime else int(LONGEST_ROUNDS // handler.max_runtime)
    rounds = max(1, min(ROUNDS, rounds))
    limit = None if handler.max_runtime is None else handler.max_runtime * rounds
    return {
        "name": handler.name,
        "resource": resource,
        "summary": handler.summary,
        "queue": handler.queue,
        "topic": handler.topic or "",
        "subscription": handler.subscription or "",
        "forward": handler.forward,
        "key": "()" if callable(handler.key) else handler.key or "",
        "concurrency": handler.concurrency,
        "max_messages": handler.concurrency * rounds,
        "max_runtime": ceil(handler.max_runtime or 0),
        "retries": handler.retry.retries,
        "retry_delay": ceil(handler.retry.delay),
        "lock": handler.lock or "",
        "on_abandoned": handler.on_abandoned,
        "lock_duration": iso(LOCK),
        "max_delivery_count": DELIVERIES,
        "default_ttl": iso(LIFE),
        "duplicate_detection_window": iso(DUPLICATES),
        "replica_timeout": _timeout(limit),
        "replica_retry_limit": EVENT_TRIES,
        **_size(handler.size),
    }


def _size(size: Size | None) -> dict[str, str]:
    return {"cpu": "", "memory": ""} if size is None else {"cpu": f"{size.cpu:g}", "memory": size.memory}


def _timeout(limit: float | None) -> int:
    """Seconds after which the platform ends an execution: later than the toolkit, which ends it well."""
    return NO_LIMIT if limit is None else ceil(limit) + START_UP


def emulator_config(manifest: dict[str, Any]) -> dict[str, Any]:
    """The same queues and topics for the Service Bus emulator, within the limits it has (an hour, five minutes)."""

    def properties(handler: dict[str, Any]) -> dict[str, Any]:
        return {
            "LockDuration": handler["lock_duration"],
            "MaxDeliveryCount": handler["max_delivery_count"],
            "DefaultMessageTimeToLive": "PT1H",
            "DeadLetteringOnMessageExpiration": True,
            "RequiresSession": False,
        }

    detection = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT5M"}
    handlers = manifest["handlers"]
    queues = [{"Name": h["queue"], "Properties": {**properties(h), **detection}} for h in handlers]
    topics = [
        {
            "Name": topic,
            "Properties": {"DefaultMessageTimeToLive": "PT1H", **detection},
            "Subscriptions": [
                {
                    "Name": h["subscription"],
                    "Properties": properties(h) | ({"ForwardTo": h["queue"]} if h["forward"] else {}),
                }
                for h in handlers
                if h["topic"] == topic
            ],
        }
        for topic in manifest["topics"]
    ]
    return {
        "UserConfig": {
            "Namespaces": [{"Name": "sbemulatorns", "Queues": queues, "Topics": topics}],
            "Logging": {"Type": "Console"},
        }
    }


def resource_names(names: Iterable[str]) -> dict[str, str]:
    """For each name one that a Container Apps job may have, which is different for each."""
    wanted = list(names)
    plain = {name: "-".join(part for part in name.replace("_", "-").split("-") if part) for name in wanted}
    fitting = {
        name
        for name, resource in plain.items()
        if len(resource) <= LONGEST_RESOURCE and list(plain.values()).count(resource) == 1
    }
    made: dict[str, str] = {}
    for digits in (5, 20):  # another one may be called just as the shorter is
        for name, resource in plain.items():
            begin = resource[: LONGEST_RESOURCE - digits - 1].rstrip("-")
            hashed = f"{begin}-{hashlib.sha256(name.encode()).hexdigest()[:digits]}"
            made[name] = resource if name in fitting else hashed
        if len(set(made.values())) == len(made):
            break
    return made


def iso(seconds: int) -> str:
    """A duration as Azure Resource Manager takes it: PT1M, P14D, PT1H30M."""
    days, rest = divmod(seconds, 86_400)
    parts = [f"{n}{unit}" for n, unit in zip(_clock(rest), "HMS", strict=True) if n]
    return "P" + (f"{days}D" if days else "") + ("T" + "".join(parts) if parts else "" if days else "T0S")


def _clock(seconds: int) -> tuple[int, int, int]:
    hours, rest = divmod(seconds, 3600)
    return hours, *divmod(rest, 60)
