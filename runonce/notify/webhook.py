"""RUNONCE_NOTIFY_URL: incidents as JSON to a webhook, one message each.

Of a job that is one message when the trouble begins and one when it is over, as its row says. Messages that are put
aside are incidents each, but a broken handler makes thousands of them: the first is told at once, further ones of
that handler together, after a minute, then two, then four, up to an hour.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runonce.execution.hooks import Hooks
from runonce.execution.threads import start_thread
from runonce.notify.post import post
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from runonce.execution.events import Incident

FIRST, LONGEST = 60.0, 3600.0
"""Seconds for which further incidents of a handler's messages are gathered."""
WORDS = {
    "failed": "failed for good",
    "held": "is held until somebody says whether it took effect",
    "missed": "was not run",
    "dead_lettered": "was dead-lettered",
}


Kind = tuple[str, str]
"""A handler and a kind of incident."""


@dataclass(eq=False, slots=True)
class _Gathered:
    """Incidents of one kind of one handler's messages that are still to be told."""

    wait: float
    latest: Incident | None = None
    count: int = 0


class Webhook(Hooks):
    """Posts each incident once."""

    waited_for = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._gathered: dict[Kind, _Gathered] = {}
        """Of what was told lately."""

    def on_incident(self, incident: Incident) -> None:
        if not incident.first:
            return
        if incident.message_id:
            kind = incident.name, incident.kind
            with self._lock:
                gathered = self._gathered.get(kind)
                if gathered is not None:
                    gathered.latest, gathered.count = incident, gathered.count + 1
                    return
                self._gather(kind, FIRST)
        self._post(incident)

    def _gather(self, kind: Kind, seconds: float) -> None:
        self._gathered[kind] = _Gathered(seconds)
        timer = threading.Timer(seconds, self._tell_gathered, [kind])
        timer.daemon = True
        timer.start()

    def _tell_gathered(self, kind: Kind) -> None:
        with self._lock:
            gathered = self._gathered.pop(kind, None)
            if gathered is None or gathered.latest is None:
                return  # closed, or quiet since
            self._gather(kind, min(gathered.wait * 2, LONGEST))
        self._post(gathered.latest, gathered.count)

    def close(self, timeout: float) -> None:
        """Tell at once what is still to be told, `timeout` seconds at most."""
        start_thread(self._tell_left, "runonce-notify").join(timeout)

    def _tell_left(self) -> None:
        with self._lock:
            left, self._gathered = self._gathered, {}
        for gathered in left.values():
            if gathered.latest is not None:
                self._post(gathered.latest, gathered.count)

    def _post(self, incident: Incident, count: int = 1) -> None:
        body = json.dumps(told(incident, count), ensure_ascii=False).encode()
        post("RUNONCE_NOTIFY_URL", self._url, body, {"Content-Type": "application/json"})


def told(incident: Incident, count: int = 1) -> dict[str, Any]:
    """An incident as a webhook gets it; `text` is for people, as Slack, Mattermost and Google Chat show it."""
    return {
        "text": _sentence(incident, count),
        "event": incident.kind,
        "incident": incident.id,
        "namespace": incident.namespace,
        "name": incident.name,
        "fire_time": to_text(incident.fire_time) or None,
        "message_id": incident.message_id or None,
        "attempt": incident.attempt or None,
        "count": count,
        "reason": incident.reason,
        "since": to_text(incident.since) or None,
        "at": to_text(incident.at),
        "host": incident.host,
    }


def _sentence(incident: Incident, count: int) -> str:
    who = f"[{incident.namespace}] {incident.name}"
    if count > 1:
        what = {
            "dead_lettered": "were dead-lettered",
            "held": "are held",
            "recovered": "were handled after all",
        }
        return f"{who}: {count:,} more messages {what[incident.kind]}, the last with: {incident.reason}"
    what_one = f"message {incident.message_id}"
    if incident.fire_time is not None:
        what_one = f"fire time {to_text(incident.fire_time)}"
    attempt = f", attempt {incident.attempt}" if incident.attempt else ""
    if incident.kind == "recovered":
        return f"{who} works again ({what_one}{attempt}): {incident.reason}"
    return f"{who}: {what_one}{attempt} {WORDS[incident.kind]}: {incident.reason}"
