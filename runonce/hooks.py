"""Hooks: hear of every run and message of this process, from a job file or any program that runs jobs.

    from runonce import hooks

    class Pager(hooks.Hooks):
        def on_incident(self, incident: hooks.Incident) -> None:
            if incident.first:
                page(f"{incident.name}: {incident.kind}, {incident.reason}")

    hooks.add(Pager())

Notification and telemetry are such hooks.
"""

from __future__ import annotations

from runonce.execution.events import (
    Incident,
    LeaseLost,
    MessageBegun,
    MessageEnded,
    NotRun,
    RunBegun,
    RunEnded,
    Sending,
    Sent,
)
from runonce.execution.hooks import Hooks, add, remove

__all__ = [
    "Hooks",
    "Incident",
    "LeaseLost",
    "MessageBegun",
    "MessageEnded",
    "NotRun",
    "RunBegun",
    "RunEnded",
    "Sending",
    "Sent",
    "add",
    "remove",
]
