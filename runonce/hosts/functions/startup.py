"""What is amiss around the app, looked at while it is imported.

The host throws away what is logged then. So it is said on the standard error, which every console shows, and once more
in the first recovery tick, whose log lines arrive.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runonce.errors import SettingsError
from runonce.hosts.functions.host_json import OVERRIDE, check_host_json, longest_run, max_dequeue_count
from runonce.hosts.manifest import RECOVERY, REQUESTS
from runonce.hosts.runtime import START_EMULATOR
from runonce.settings import emulator

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from runonce.hosts.runtime import Runtime
    from runonce.messages.definition import Handler
    from runonce.settings import Settings

UTC_NAMES = re.compile(r"(:?(Etc/)?(UTC|UCT|GMT|Zulu|Universal)([+-]?0)?)?", re.IGNORECASE)
"""Values of TZ that move no timer."""
PLANS_ZONE = "WEBSITE_TIME_ZONE"
THREADS = "PYTHON_THREADPOOL_THREAD_COUNT"
LEADER = (
    "RUNONCE_LEADER=on changes nothing on Functions, whose host starts each timer once for all instances of an app; it "
    "is for `runonce serve`."
)
PATIENCE = 0.5
"""Seconds for an address of this machine to take a connection."""


def look(root: Path, runtime: Runtime, off: Mapping[str, str]) -> list[str]:
    """What is to be said about host.json, the settings and what they name; `off` is of `left_out`.

    Every job's and handler's limit is put below the host's own.

    Raises:
        SettingsError: No message, or no timer, could be relied on so.
    """
    check_zone(os.environ)
    return [
        *_host_json(root, runtime),
        *plans_zone(os.environ),
        *threads(os.environ, len(runtime.jobs)),
        *(without(name, setting, runtime.jobs) for name, setting in off.items()),
        *unreachable(runtime.settings),
        *(LEADER for _ in range(runtime.settings.leader)),
    ]


def threads(environ: Mapping[str, str], wanted: int) -> Iterator[str]:
    """Fewer threads than the host gives its worker: ticks wait for one, unseen by the host. Messages have their own."""
    given = environ.get(THREADS, "").strip()
    if given.isdigit() and int(given) < wanted:
        yield (
            f"{THREADS}={given}: each run takes a thread, {wanted} at most, so ticks wait "
            f"for one and begin late, and after five minutes are left to recovery; remove that setting (the host's "
            f"own figure is 1000)."
        )


def tell(text: str) -> None:
    """To whoever looks at the console."""
    sys.stderr.write(f"runonce: {text}\n")
    sys.stderr.flush()


def most_deliveries(root: Path) -> int:
    """How often the host delivers a message of a Storage queue before it puts it aside."""
    return max_dequeue_count(_text(root) or "{}", os.environ)


def _text(root: Path) -> str | None:
    try:
        return (root / "host.json").read_text(encoding="utf-8-sig")
    except OSError:
        return None  # then the host itself has said so


def _host_json(root: Path, runtime: Runtime) -> list[str]:
    text = _text(root)
    if text is None:
        return []
    found, jobs = runtime.found, runtime.jobs
    findings = check_host_json(
        text, os.environ, found.jobs.values(), found.handlers.values(), runtime.settings.transport
    )
    if fatal := [finding.text for finding in findings if finding.fatal]:
        raise SettingsError("\n".join(fatal))
    longest = longest_run(text, os.environ)
    if longest != float("inf"):
        jobs.update({n: replace(one, max_runtime=_less(one.max_runtime, longest)) for n, one in jobs.items()})
        found.handlers.update({n: _ending_within(one, longest) for n, one in found.handlers.items()})
    return [finding.text for finding in findings]


def _ending_within(one: Handler, longest: float) -> Handler:
    """The handler, whose function also waits for its lock."""
    wait = min(one.lock_wait, longest / 2)
    left = longest if one.lock is None else longest - wait
    return replace(one, lock_wait=wait, max_runtime=_less(one.max_runtime, left))


def _less(own: float | None, longest: float) -> float:
    return longest if own is None else min(own, longest)


def check_zone(environ: Mapping[str, str]) -> None:
    """SettingsError where the host would read its timers in another zone than UTC, for which they are made."""
    zone = environ.get("TZ", "").strip()
    if not UTC_NAMES.fullmatch(zone):
        raise SettingsError(
            f"TZ={zone!r} moves every timer of the Functions host, so that jobs would be missed or run late: remove "
            f"that setting, and give each job its own time_zone={zone.lstrip(':')!r}."
        )


def plans_zone(environ: Mapping[str, str]) -> Iterator[str]:
    """The same of the plan's own setting, which on some plans does nothing."""
    zone = environ.get(PLANS_ZONE, "").strip()
    if not UTC_NAMES.fullmatch(zone):
        yield (
            f"{PLANS_ZONE}={zone!r} moves every timer of the Functions host on plans that heed it, so that jobs would "
            f"be missed or run late: remove it, and give each job its own time_zone."
        )


def left_out(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Which functions the host does not start, and the setting that says so."""
    settings = {name.lower(): (name, value.strip()) for name, value in environ.items()}
    only = {
        value for name, (_, value) in settings.items() if name.startswith(f"{OVERRIDE}functions__".lower())
    }
    off: dict[str, str] = {}
    for name in names:
        for spelt in (f"azurewebjobs.{name}.disabled", f"azurewebjobs_{name}_disabled"):
            setting, value = settings.get(spelt.lower(), ("", ""))
            if value.lower() == "true" or (value.lstrip("+-").isdigit() and int(value) != 0):
                off[name] = setting
        if only and name not in only:
            off.setdefault(name, "--functions")
    return off


def without(name: str, setting: str, jobs: Collection[str]) -> str:
    """What does not happen where that function is switched off."""
    begin = f"Function {name!r} is switched off ({setting}): "
    if name == RECOVERY:
        return begin + "here nobody looks for runs that were killed or missed, or whose retry is due."
    if name == REQUESTS:
        return begin + "what recovery, a retry or `runonce run --ask` asks for does not run here."
    if name in jobs:
        return begin + "its timer does not tick, and nothing else runs it here."
    return begin + "its messages wait."


def unreachable(settings: Settings) -> Iterator[str]:
    """Stand-ins on this machine that are not there: the host itself would say so late, or never."""
    storage = settings.storage
    if storage.is_local:
        text = (
            emulator(storage.connection_string)
            or storage.connection_string
            or ";".join(storage.endpoints.values())
        )
        for address in dict.fromkeys(re.findall(r"https?://[^;/]+", text)):
            if not _answers(address, 80):
                yield (
                    f"Storage does not answer at {address} ({storage.setting}): start the emulator with "
                    f"`{START_EMULATOR}`."
                )
                break
    bus = settings.servicebus
    if settings.transport == "servicebus" and bus is not None:
        address = next(iter(re.findall(r"sb://[^;/]+", bus.connection_string or "")), "")
        if urlsplit(address).hostname in ("127.0.0.1", "localhost", "::1") and not _answers(address, 5672):
            yield (
                f"Service Bus does not answer at {address} ({bus.setting}): start the broker with "
                f"`python dev.py servicebus`, or remove that setting to use Storage queues."
            )


def _answers(address: str, port: int) -> bool:
    parts = urlsplit(address)
    try:
        with closing(socket.create_connection((parts.hostname, parts.port or port), PATIENCE)):
            return True
    except OSError:
        return False
