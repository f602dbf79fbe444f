"""Spans and metrics as the SDK's own exporters in memory have them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.hooks import added

from runonce.execution import hooks
from runonce.telemetry.metrics import Metrics
from runonce.telemetry.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan


@dataclass(frozen=True)
class Recorded:
    """What was recorded so far."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    tracers: TracerProvider

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """The spans that have ended, or those of that name."""
        assert hooks.drain(10)
        return [span for span in self.exporter.get_finished_spans() if name in ("", span.name)]

    def span(self, name: str) -> ReadableSpan:
        """The one span of that name."""
        (found,) = self.spans(name)
        return found

    def names(self) -> set[str]:
        """Of all spans."""
        return {span.name for span in self.spans()}

    def points(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """By instrument: attributes, and the count, or of a histogram its sum."""
        assert hooks.drain(10)
        data = self.reader.get_metrics_data()
        found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        for resource in [] if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found[metric.name] = [
                        (dict(point.attributes or {}), getattr(point, "value", getattr(point, "sum", None)))
                        for point in metric.data.data_points
                    ]
        return found


@contextlib.contextmanager
def recording(transport: str = "storage") -> Iterator[Recorded]:
    """Telemetry in memory, while a test looks at it."""
    exporter, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader])
    with added(Spans(tracers, transport), Metrics(meters, transport)):
        yield Recorded(exporter, reader, tracers)
    tracers.shutdown()
    meters.shutdown()


def parent_of(span: ReadableSpan) -> int | None:
    """The id of its parent."""
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    """Its own id."""
    return int(span.get_span_context().span_id)
