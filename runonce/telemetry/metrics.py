"""Metrics of runs, messages, claims and leases, by OpenTelemetry's semantic conventions where there are some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runonce.execution.hooks import Hooks
from runonce.telemetry.spans import SYSTEMS, type_of

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from runonce.execution.events import (
        Incident,
        LeaseLost,
        MessageBegun,
        MessageEnded,
        NotRun,
        RunBegun,
        RunEnded,
        Sent,
    )

SECONDS = [0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600]
"""Bounds of what takes seconds to hours."""


class Metrics(Hooks):
    """Counts and times what happens; its instruments are listed in docs/telemetry.md."""

    waited_for = False

    def __init__(self, provider: MeterProvider, transport: str) -> None:
        meter = provider.get_meter("runonce")

        def seconds(name: str, what: str) -> Any:
            return meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=SECONDS)

        self._system = SYSTEMS[transport]
        self._runs = meter.create_counter("runonce.runs", "{run}", "Runs that ended here")
        self._duration = seconds("runonce.run.duration", "How long they took")
        self._lateness = seconds("runonce.run.lateness", "How long after its fire time a run began")
        self._takeover = seconds("runonce.takeover.duration", "Since the last write of a host that died")
        self._renewal = seconds("runonce.lease.renewal.lateness", "The latest renewal of a run's lease")
        self._lost = meter.create_counter("runonce.lease.lost", "{lease}", "Leases, claims and locks lost")
        self._claims = meter.create_counter("runonce.claims", "{claim}", "Fire times and messages that came")
        self._incidents = meter.create_counter("runonce.incidents", "{incident}", "What a person should know")
        self._process = seconds("messaging.process.duration", "How long a handler took")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Claimed here"
        )
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Sent from here")
        self._age = seconds(
            "runonce.message.age", "How long a message had been in its queue when it was claimed"
        )

    def before_run(self, run: RunBegun) -> None:
        about = {"runonce.job": run.job}
        self._claims.add(1, {"runonce.name": run.job, "runonce.outcome": "claimed"})
        if run.attempt == 1:
            self._lateness.record(run.late, about)
        if run.taken_over is not None:
            self._takeover.record(run.taken_over, {"runonce.name": run.job})

    def after_run(self, ended: RunEnded) -> None:
        about = {"runonce.job": ended.run.job, "runonce.outcome": ended.outcome, **_type(ended.error)}
        self._runs.add(1, about)
        self._duration.record(ended.seconds, about)
        self._renewal.record(ended.renewed_late, {"runonce.job": ended.run.job})

    def before_message(self, message: MessageBegun) -> None:
        self._claims.add(1, {"runonce.name": message.handler, "runonce.outcome": "claimed"})
        self._consumed.add(1, self._about(message.queue, "process"))
        if message.waited is not None:
            self._age.record(message.waited, {"runonce.handler": message.handler})
        if message.taken_over is not None:
            self._takeover.record(message.taken_over, {"runonce.name": message.handler})

    def after_message(self, ended: MessageEnded) -> None:
        about = {"runonce.handler": ended.message.handler, "runonce.outcome": ended.outcome}
        about |= {**self._about(ended.message.queue, "process"), **_type(ended.error)}
        self._process.record(ended.seconds, about)

    def on_lease_lost(self, lost: LeaseLost) -> None:
        work = lost.work
        self._lost.add(1, {"runonce.name": work.handler if hasattr(work, "handler") else work.job})

    def on_not_run(self, refused: NotRun) -> None:
        self._claims.add(1, {"runonce.name": refused.name, "runonce.outcome": refused.why})

    def on_incident(self, incident: Incident) -> None:
        if incident.first:
            self._incidents.add(1, {"runonce.name": incident.name, "runonce.kind": incident.kind})

    def after_send(self, sent: Sent) -> None:
        about = {**self._about(sent.sending.target, "send"), **_type(sent.error)}
        self._sent.add(len(sent.sending.message_ids), about)

    def _about(self, queue: str, operation: str) -> dict[str, str]:
        return {
            "messaging.system": self._system,
            "messaging.destination.name": queue,
            "messaging.operation.name": operation,
        }


def _type(error: BaseException | None) -> dict[str, str]:
    return {} if error is None else {"error.type": type_of(error)}
