"""Spans of runs and messages, by OpenTelemetry's semantic conventions where there are some.

    tick JOB                          from the call for the lease to the recorded outcome
    ├── lease JOB, claim JOB
    └── run JOB                       current while the job's code runs
        └── send QUEUE                PRODUCER; its context travels with the messages
            └── process QUEUE         CONSUMER, current while the handler's code runs; of a batch, a trace of its own
                                      with a link to what sent it

No body, no key and no text of an error is in an attribute; an error's type is.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runonce.execution.hooks import Hooks
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from datetime import datetime

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from runonce.execution.events import (
        LeaseLost,
        MessageBegun,
        MessageEnded,
        RunBegun,
        RunEnded,
        Sending,
        Sent,
    )

BATCH = "runonce-batch"
"""Header of each message of a batch: how many were sent together."""
SYSTEMS = {"servicebus": "servicebus", "storage": "azure_storage_queue"}
FINE = ("succeeded", "stopped", "done")


class Spans(Hooks):
    """Makes them; one that is not ended, for its process died, is not exported."""

    def __init__(self, provider: TracerProvider, transport: str) -> None:
        self._tracer = trace.get_tracer("runonce", tracer_provider=provider)
        self._carrier = TraceContextTextMapPropagator()
        self._system = SYSTEMS[transport]
        self._lock = threading.Lock()
        self._open: dict[str, list[Span]] = {}
        """The innermost first, by the holder of a run or message."""
        self._sends: dict[int, Span] = {}

    # -- runs -----------------------------------------------------------------------------------------------

    def before_run(self, run: RunBegun) -> None:
        leased = run.at - timedelta(seconds=run.claim_seconds)
        asked = leased - timedelta(seconds=run.lease_seconds)
        about = {
            **_about(run),
            "runonce.job": run.job,
            "runonce.fire_time": to_text(run.fire_time),
            "runonce.by": run.by,
        }
        outer = run.context.run(contexts.get_current)
        tick = self._tracer.start_span(f"tick {run.job}", outer, attributes=about, start_time=_ns(asked))
        inside = trace.set_span_in_context(tick, outer)
        for name, start, end in (("lease", asked, leased), ("claim", leased, run.at)):
            self._tracer.start_span(f"{name} {run.job}", inside, start_time=_ns(start)).end(_ns(end))
        span = self._tracer.start_span(f"run {run.job}", inside, attributes=about, start_time=_ns(run.at))
        self._keep(run.holder, [span, tick])
        run.context.run(contexts.attach, trace.set_span_in_context(span, inside))

    def after_run(self, ended: RunEnded) -> None:
        self._end(ended.run, ended.outcome, ended.error, ended.seconds)

    # -- messages -------------------------------------------------------------------------------------------

    def before_message(self, message: MessageBegun) -> None:
        outer = message.context.run(contexts.get_current)
        sent = self._carrier.extract(message.headers, outer)
        sender = trace.get_current_span(sent).get_span_context()
        in_batch = BATCH in message.headers
        span = self._tracer.start_span(
            f"process {message.queue}",
            outer if in_batch else sent,
            SpanKind.CONSUMER,
            links=[Link(sender)] if in_batch and sender.is_valid else [],
            attributes={
                **_about(message),
                **_destination(self._system, message.queue, "process"),
                "runonce.handler": message.handler,
                "messaging.message.id": message.message_id,
            },
            start_time=_ns(message.at),
        )
        self._keep(message.holder, [span])
        message.context.run(contexts.attach, trace.set_span_in_context(span, outer))

    def after_message(self, ended: MessageEnded) -> None:
        self._end(ended.message, ended.outcome, ended.error, ended.seconds)

    def on_lease_lost(self, lost: LeaseLost) -> None:
        with self._lock:
            for span in self._open.get(lost.work.holder, [])[:1]:
                span.add_event("lease lost")

    def before_send(self, sending: Sending) -> None:
        count = len(sending.message_ids)
        about = _destination(self._system, sending.target, "send")
        if count > 1:
            about["messaging.batch.message_count"] = count
            sending.headers[BATCH] = str(count)
        else:
            about["messaging.message.id"] = sending.message_ids[0]
        span = self._tracer.start_span(f"send {sending.target}", kind=SpanKind.PRODUCER, attributes=about)
        self._carrier.inject(sending.headers, trace.set_span_in_context(span))
        with self._lock:
            self._sends[id(sending)] = span

    def after_send(self, sent: Sent) -> None:
        with self._lock:
            span = self._sends.pop(id(sent.sending), None)
        if span is not None:
            _close(span, sent.error)

    # -- both -----------------------------------------------------------------------------------------------

    def _keep(self, holder: str, spans: list[Span]) -> None:
        with self._lock:
            self._open[holder] = spans

    def _end(
        self, begun: RunBegun | MessageBegun, outcome: str, error: BaseException | None, seconds: float
    ) -> None:
        with self._lock:
            spans = self._open.pop(begun.holder, [])
        at = begun.at + timedelta(seconds=seconds)
        for span in spans:
            span.set_attribute("runonce.outcome", outcome)
            _close(span, error, failed=outcome not in FINE, at=at)


def _about(begun: RunBegun | MessageBegun) -> dict[str, Any]:
    about: dict[str, Any] = {
        "runonce.namespace": begun.namespace,
        "runonce.host": begun.host,
        "runonce.attempt": begun.attempt,
        "runonce.fencing_token": begun.token,
    }
    return about if begun.taken_over is None else {**about, "runonce.takeover.seconds": begun.taken_over}


def _destination(system: str, name: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": system,
        "messaging.destination.name": name,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _close(
    span: Span, error: BaseException | None, *, failed: bool | None = None, at: datetime | None = None
) -> None:
    if failed if failed is not None else error is not None:
        span.set_status(StatusCode.ERROR)
    if error is not None:
        span.set_attribute("error.type", type_of(error))
    span.end(None if at is None else _ns(at))


def type_of(error: BaseException) -> str:
    """What kind of error it is, as the conventions write it; its text may hold anything."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000


def current(context: Context | None = None) -> tuple[str, str]:
    """Trace id and span id of what runs, in hexadecimal; empty where nothing is traced."""
    found = trace.get_current_span(context).get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else ("", "")
