"""Where spans and metrics go, as RUNONCE_TELEMETRY says."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from runonce.errors import MissingExtraError, SettingsError
from runonce.execution import hooks
from runonce.execution.threads import start_thread

if TYPE_CHECKING:
    from contextlib import ExitStack

    from runonce.watched import Watched

LAST_WORDS = 5.0
"""Seconds for what is still to be exported when a process ends."""
NEEDED = {"azure": "azure-monitor"}


def listen(watched: Watched, namespace: str, host: str, transport: str, made: ExitStack | None) -> None:
    """Add the hooks, to be removed when `made` is closed; without it, for a program that only sends, at its end.

    Raises:
        MissingExtraError: A package is not installed.
        SettingsError: A setting of the exporter's own is missing.
    """
    if not watched.telemetry:
        return
    try:
        from runonce.telemetry.metrics import Metrics  # noqa: PLC0415 - as all of this
        from runonce.telemetry.spans import Spans  # noqa: PLC0415

        if hooks.added(Spans):
            return  # a host's of this process
        tracers, meters = _providers(watched.telemetry, namespace, host, at_exit=made is None)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("opentelemetry", "azure.monitor")):
            raise
        extra = NEEDED.get(watched.telemetry, "otel")
        raise MissingExtraError(f"RUNONCE_TELEMETRY={watched.telemetry}", extra) from error
    if watched.telemetry != "own" and made is not None:
        made.callback(
            lambda: start_thread(lambda: _shut_down(tracers, meters), "runonce-export").join(LAST_WORDS)
        )
    for one in (Spans(tracers, transport), Metrics(meters, transport)):
        hooks.add(one)
        if made is not None:
            made.callback(hooks.remove, one)


def _shut_down(*providers: Any) -> None:
    for provider in providers:
        provider.shutdown()


def _providers(kind: str, namespace: str, host: str, *, at_exit: bool) -> tuple[Any, Any]:
    """A provider of tracers and one of meters: the program's own, or made here."""
    if kind == "own":
        from opentelemetry import metrics, trace  # noqa: PLC0415

        return trace.get_tracer_provider(), metrics.get_meter_provider()
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    spans, numbers = _exporters(kind)
    about = {"service.instance.id": host, "service.namespace": "runonce", "service.name": namespace}
    if os.environ.get("OTEL_SERVICE_NAME"):
        del about["service.name"]
    resource = Resource.create(about)
    tracers = TracerProvider(resource=resource, shutdown_on_exit=at_exit)
    tracers.add_span_processor(BatchSpanProcessor(spans))
    meters = MeterProvider([PeriodicExportingMetricReader(numbers)], resource, shutdown_on_exit=at_exit)
    return tracers, meters


def _exporters(kind: str) -> tuple[Any, Any]:
    if kind == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter  # noqa: PLC0415

        return ConsoleSpanExporter(out=sys.stderr), ConsoleMetricExporter(out=sys.stderr)
    if kind == "otlp":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        return OTLPSpanExporter(), OTLPMetricExporter()
    from azure.monitor.opentelemetry.exporter import (  # noqa: PLC0415
        AzureMonitorMetricExporter,
        AzureMonitorTraceExporter,
    )

    options: dict[str, Any] = {}
    if "Authorization=AAD" in os.environ.get("APPLICATIONINSIGHTS_AUTHENTICATION_STRING", ""):
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415

        options = {"credential": DefaultAzureCredential()}
    try:
        return AzureMonitorTraceExporter(**options), AzureMonitorMetricExporter(**options)
    except ValueError as error:
        raise SettingsError(
            f"RUNONCE_TELEMETRY=azure: APPLICATIONINSIGHTS_CONNECTION_STRING is missing or wrong ({error}); copy it "
            f"from the Application Insights resource."
        ) from None
