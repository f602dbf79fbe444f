"""Pings as healthchecks.io and its like take them: a job's run begins, has succeeded, has failed for good."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from runonce.execution.hooks import Hooks
from runonce.notify.post import extended, post

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runonce.execution.events import Incident, RunBegun, RunEnded

LONGEST_BODY = 10_000
"""Bytes of a failure's reason (what healthchecks.io keeps is ten times as much)."""


class Pings(Hooks):
    """Pings `URL/start`, `URL` and `URL/fail` with the run's `rid`; nothing for a failure that is tried again."""

    waited_for = False

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        """By job."""

    def before_run(self, run: RunBegun) -> None:
        self._ping(run.job, "/start", run.idempotency_key)

    def after_run(self, ended: RunEnded) -> None:
        if ended.outcome == "succeeded":
            self._ping(ended.run.job, "", ended.run.idempotency_key)

    def on_incident(self, incident: Incident) -> None:
        if incident.kind in ("failed", "held"):
            self._ping(incident.name, "/fail", incident.idempotency_key, incident.reason)

    def _ping(self, job: str, path: str, key: str, text: str = "") -> None:
        url = self._urls.get(job)
        if url is not None:
            run = uuid.uuid5(uuid.NAMESPACE_OID, key)
            body = text.encode()[:LONGEST_BODY]
            post(
                f"The ping_url of {job}",
                extended(url, path, run),
                body,
                {"Content-Type": "text/plain; charset=utf-8"},
            )
