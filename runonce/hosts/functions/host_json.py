"""host.json against the jobs and handlers: what the Functions host is told must fit what they say. Pure, no I/O.

The host reads its own file and knows nothing of them; a figure that does not fit shows up as killed runs, and as
redelivered or dead-lettered messages, long after it was written. So the app looks at it when it starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runonce.hosts.hosts_json import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from runonce.messages.definition import Handler
    from runonce.runs.definition import ScheduledJob
    from runonce.settings import TransportName

OVERRIDE = "AzureFunctionsJobHost__"
"""Begins an application setting that goes before host.json, its path joined by two underscores."""
DURATION = re.compile(r"(?:([0-9]{1,8})\.)?([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:\.[0-9]+)?")
DEFAULT_TIMEOUT = "00:30:00"
"""On the Flex Consumption plan."""
MARGIN = 60.0
"""Seconds before functionTimeout at which whatever runs is told to end, so that it can."""
SHORTEST_HIDING = 5.0
FEWEST_DELIVERIES = 3
MAX_DEQUEUE_COUNT = "extensions.queues.maxDequeueCount"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in host.json that does not fit."""

    text: str
    fatal: bool
    """Whether no message could be handled so."""


def longest_run(text: str, environ: Mapping[str, str]) -> float:
    """Seconds a run may take at most: it must have ended before the host ends the worker with everything in it."""
    return _within(_values(text, environ).seconds("functionTimeout", DEFAULT_TIMEOUT))


def max_dequeue_count(text: str, environ: Mapping[str, str]) -> int:
    """How often the host delivers a message of a Storage queue before it puts it aside."""
    count: int = _values(text, environ).of(MAX_DEQUEUE_COUNT, 5)
    return count


def _values(text: str, environ: Mapping[str, str]) -> _Values:
    try:
        content = read_json(text)
    except ValueError:
        content = {}  # `check_host_json` says so
    return _Values(_overridden(content, environ) if isinstance(content, dict) else {})


def _within(limit: float) -> float:
    return limit if limit == float("inf") else limit - min(MARGIN, limit / 10)


def check_host_json(
    text: str,
    environ: Mapping[str, str],
    jobs: Iterable[ScheduledJob],
    handlers: Iterable[Handler],
    transport: TransportName,
) -> list[Finding]:
    """What does not fit; every text names the value, the jobs or handlers it is about, and the remedy.

    Args:
        text: The file's content.
        environ: Application settings may override the file.
        jobs: Those of the app.
        handlers: Likewise.
        transport: What carries the handlers' messages.
    """
    try:
        content = read_json(text)
    except ValueError as error:
        return [
            Finding(
                f"host.json is not valid JSON ({error}); the Functions host cannot start with it.", fatal=True
            )
        ]
    if not isinstance(content, dict):
        return [Finding("host.json must be a JSON object; copy the one of the repository.", fatal=True)]
    known = sorted(handlers, key=lambda one: one.name)
    scheduled = sorted(jobs, key=lambda one: one.name)
    values = _Values(_overridden(content, environ))
    findings = [
        *_encoding(values),
        *_timeout(values, [*scheduled, *known]),
        *_requests(values, len(scheduled)),
    ]
    if known:
        findings += _servicebus(values, known) if transport == "servicebus" else _queues(values, known)
    return [*values.unreadable, *findings]


class _Values:
    """The values by path, with the host's defaults; ones of a wrong kind are noted and taken as the default."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self.unreadable: list[Finding] = []

    def of(self, path: str, default: Any) -> Any:
        value: Any = self._content
        for part in path.split("."):
            if not isinstance(value, Mapping):
                return default
            value = next((v for k, v in value.items() if k.lower() == part.lower()), None)
        if value is None:
            return default
        if isinstance(default, str) and value == -1:
            value = "-1"  # the host reads a number as text
        if isinstance(value, str) and not isinstance(default, str):  # from an application setting
            value = {"true": True, "false": False}.get(
                value.lower(), int(value) if re.fullmatch("[0-9]{1,9}", value) else value
            )
        if not isinstance(value, type(default)) or isinstance(value, bool) != isinstance(default, bool):
            self._wrong(path, value, f"write {json.dumps(default)} or another one of that kind")
            return default
        return value

    def seconds(self, path: str, default: str) -> float:
        """A duration; "-1" is without end."""
        value = self.of(path, default)
        if value == "-1":
            return float("inf")
        match = DURATION.fullmatch(value)
        if match is None:
            self._wrong(path, value, f'write hours:minutes:seconds, such as "{default}"')
            match = DURATION.fullmatch(default)
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)

    def _wrong(self, path: str, value: Any, remedy: str) -> None:
        finding = Finding(f"host.json {path}={json.dumps(value)}: {remedy}.", fatal=True)
        if finding not in self.unreadable:
            self.unreadable.append(finding)


def _overridden(content: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    merged = dict(content)
    for name, value in environ.items():
        if not name.lower().startswith(OVERRIDE.lower()):
            continue
        *folders, last = name[len(OVERRIDE) :].split("__")
        place = merged
        for folder in folders:
            key = next((k for k in place if k.lower() == folder.lower()), folder)
            inner = place.get(key)
            place[key] = dict(inner) if isinstance(inner, dict) else {}
            place = place[key]
        place[next((k for k in place if k.lower() == last.lower()), last)] = value
    return merged


def _encoding(values: _Values) -> Iterator[Finding]:
    encoding = values.of("extensions.queues.messageEncoding", "base64")
    if encoding.lower() != "base64":
        yield Finding(
            f'host.json extensions.queues.messageEncoding="{encoding}": the toolkit writes Base64, also to its '
            f"internal queue, so no message could be read; remove the value, or set base64.",
            fatal=True,
        )


def _timeout(values: _Values, all_of_them: list[ScheduledJob | Handler]) -> Iterator[Finding]:
    limit = values.seconds("functionTimeout", DEFAULT_TIMEOUT)
    told = _within(limit)
    for one in all_of_them:
        own = float("inf") if one.max_runtime is None else one.max_runtime
        if own > told:
            given = "no max_runtime" if one.max_runtime is None else f"max_runtime={own:g} s"
            yield _warning(
                one,
                f"{given}, and host.json functionTimeout={_span(limit)} ends the worker with everything it runs, so "
                f"here it is told to end after {told:g} s; lower max_runtime, or raise functionTimeout",
            )


def _requests(values: _Values, jobs: int) -> Iterator[Finding]:
    """The internal queue, which the host reads one message at a time once so many are being worked on."""
    path = "extensions.queues"
    more = _threshold(values)
    if more < jobs:
        yield Finding(
            f"host.json {path}.newBatchThreshold={more}: what the {jobs} scheduled jobs are asked to run comes through "
            f"one queue, which the host reads no further while more than {more} of it run, so that as many long runs "
            f"keep every retry and every resumed run waiting; set {jobs} or more.",
            fatal=False,
        )


def _threshold(values: _Values) -> int:
    batch: int = values.of("extensions.queues.batchSize", 16)
    more: int = values.of("extensions.queues.newBatchThreshold", batch // 2)
    return more


def _servicebus(values: _Values, handlers: list[Handler]) -> Iterator[Finding]:
    path = "extensions.serviceBus"
    if not values.of(f"{path}.autoCompleteMessages", default=True):
        yield Finding(
            f"host.json {path}.autoCompleteMessages=false: a Python function cannot complete its messages itself, so "
            f"each would come again until it is dead-lettered; remove the value, or set true. It is about "
            f"{_listed(handlers)}.",
            fatal=True,
        )
    prefetched = values.of(f"{path}.prefetchCount", 0)
    if prefetched > 0:
        yield Finding(
            f"host.json {path}.prefetchCount={prefetched}: the locks of prefetched messages run while they wait, and "
            f"each lost one is a delivery more; set 0. It is about {_listed(handlers)}.",
            fatal=False,
        )
    renewed = values.seconds(f"{path}.maxAutoLockRenewalDuration", "00:05:00")
    timeout = values.seconds("functionTimeout", DEFAULT_TIMEOUT)
    for one in handlers:
        longest = min(float("inf") if one.max_runtime is None else one.max_runtime, _within(timeout))
        if longest == float("inf"):
            yield _warning(
                one, "has no max_runtime and host.json functionTimeout is without end; give it a max_runtime"
            )
        elif longest > renewed:
            yield _warning(
                one,
                f"may run for {_span(longest)}, longer than host.json {path}.maxAutoLockRenewalDuration="
                f"{_span(renewed)}, so its message is delivered again while it still runs; raise that value to "
                f"{_clock(longest)}, or lower max_runtime",
            )


def _queues(values: _Values, handlers: list[Handler]) -> Iterator[Finding]:
    path = "extensions.queues"
    for one in (one for one in handlers if one.queue_encoding == "none"):
        yield Finding(
            f'Handler {one.name!r}: queue_encoding="none", and the Functions host decodes every text, for host.json '
            f"{path}.messageEncoding must be base64; have its senders encode, or handle the queue with `runonce work`.",
            fatal=True,
        )
    hidden = values.seconds(f"{path}.visibilityTimeout", "00:00:00")
    if hidden < SHORTEST_HIDING:
        yield Finding(
            f"host.json {path}.visibilityTimeout={_clock(hidden)}: a message whose function failed is redelivered "
            f"at once, and all its deliveries are used up within a second; set 00:00:30. It is about "
            f"{_listed(handlers)}.",
            fatal=False,
        )
    deliveries = values.of(MAX_DEQUEUE_COUNT, 5)
    if deliveries < FEWEST_DELIVERIES:
        yield Finding(
            f"host.json {path}.maxDequeueCount={deliveries}: a message is dead-lettered when its host died "
            f"{deliveries} time{'' if deliveries == 1 else 's'}; set 5. It is about {_listed(handlers)}.",
            fatal=False,
        )


def _warning(one: ScheduledJob | Handler, what: str) -> Finding:
    kind = "Handler" if hasattr(one, "queue") else "Job"
    return Finding(f"{kind} {one.name!r}: {what}.", fatal=False)


def _listed(handlers: list[Handler]) -> str:
    return ", ".join(one.name for one in handlers)


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _span(seconds: float) -> str:
    return "without end" if seconds == float("inf") else _clock(seconds)
