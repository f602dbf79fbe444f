"""What the host reads of a project: host.json, the settings, and which functions are switched off."""

import json
import re
import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

_TIME_SPAN = re.compile(r"(?:(\d+)\.)?(\d+):(\d\d):(\d\d)(?:\.\d+)?")
_OVERRIDE = "AzureFunctionsJobHost__"


@dataclass(frozen=True, kw_only=True)
class Queues:
    """host.json's part for Storage queues."""

    batch_size: int
    new_batch_threshold: int
    max_polling_interval: float
    visibility_timeout: float
    max_dequeue_count: int
    base64: bool


@dataclass(frozen=True, kw_only=True)
class Bus:
    """host.json's part for Service Bus."""

    max_calls: int
    prefetch: int
    auto_complete: bool
    max_renewal: float


@dataclass(frozen=True, kw_only=True)
class Project:
    """A function app's folder with the settings it runs under."""

    folder: Path
    settings: Mapping[str, str]
    function_timeout: float | None
    queues: Queues
    bus: Bus

    @classmethod
    def read(cls, folder: Path, settings: Mapping[str, str]) -> "Project":
        """Read host.json, each value with the host's own default, and lay the settings' overrides over it."""
        content = json.loads((folder / "host.json").read_text(encoding="utf-8-sig"))
        for name, value in settings.items():
            if name.startswith(_OVERRIDE):
                _lay_over(content, name.removeprefix(_OVERRIDE).split("__"), value)
        queues, bus = (content.get("extensions", {}).get(name, {}) for name in ("queues", "serviceBus"))
        batch = int(queues.get("batchSize", 16))
        return cls(
            folder=folder,
            settings=settings,
            function_timeout=_seconds(content.get("functionTimeout", "00:30:00")),
            queues=Queues(
                batch_size=batch,
                new_batch_threshold=int(queues.get("newBatchThreshold", batch // 2)),
                max_polling_interval=_seconds(queues.get("maxPollingInterval", "00:01:00")) or 0.0,
                visibility_timeout=_seconds(queues.get("visibilityTimeout", "00:00:00")) or 0.0,
                max_dequeue_count=int(queues.get("maxDequeueCount", 5)),
                base64=str(queues.get("messageEncoding", "base64")).lower() == "base64",
            ),
            bus=Bus(
                max_calls=int(bus.get("maxConcurrentCalls", 16)),
                prefetch=int(bus.get("prefetchCount", 0)),
                auto_complete=_true(bus.get("autoCompleteMessages", True)),
                max_renewal=_seconds(bus.get("maxAutoLockRenewalDuration", "00:05:00")) or 0.0,
            ),
        )

    @property
    def host_id(self) -> str:
        """Hosts of one id share their timers; it comes of machine and folder unless it is set."""
        made = f"{socket.gethostname()[:20]}-{zlib.crc32(str(self.folder).encode())}".lower()
        return self.settings.get("AzureFunctionsWebHost__hostid") or made

    @property
    def zone(self) -> ZoneInfo:
        """Where timers are read: TZ moves them, WEBSITE_TIME_ZONE does not."""
        return ZoneInfo(self.settings.get("TZ") or "UTC")

    @property
    def storage(self) -> str | None:
        """The connection string of the host's own storage."""
        return self.settings.get("AzureWebJobsStorage")

    def connection(self, trigger: Mapping[str, Any], default: str) -> str | None:
        """The connection string a trigger names."""
        return self.settings.get(trigger.get("connection") or default)

    def listens(self, name: str) -> bool:
        """Whether a function is neither disabled nor left out by a list of functions (`--functions`)."""
        if _true(self.settings.get(f"AzureWebJobs.{name}.Disabled", "")):
            return False
        only = [value for key, value in self.settings.items() if key.startswith(f"{_OVERRIDE}functions__")]
        return not only or name in only


def _lay_over(content: Any, path: list[str], value: str) -> None:
    for name in path[:-1]:
        content = content.setdefault(name, {})
        if not isinstance(content, dict):
            return  # an index into a list, such as that of the functions
    content[path[-1]] = value


def _seconds(text: str) -> float | None:
    """The host's `[d.]hh:mm:ss` in seconds; None for -1, which is no limit."""
    if text == "-1":
        return None
    match = _TIME_SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} in host.json is no time span")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _true(value: Any) -> bool:
    return str(value).lower() in ("true", "1")
