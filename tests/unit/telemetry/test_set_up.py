"""RUNONCE_TELEMETRY: exporters that really send, to servers on this machine; nothing where it is off."""

from __future__ import annotations

import builtins
import gzip
import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.listener import HANG, Listener, listening

from runonce.errors import MissingExtraError, SettingsError
from runonce.execution import hooks
from runonce.runs.definition import scheduled
from runonce.telemetry.set_up import listen
from runonce.testing import Workbench
from runonce.testing.faults import PassingClock
from runonce.watched import Watched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.runs.run import Run


@pytest.fixture
def server() -> Iterator[Listener]:
    """A real HTTP server that keeps what it is sent."""
    with listening() as one:
        yield one


@scheduled("0 0 3 * * *")
def nightly(_: Run) -> None:
    """Works."""


def run_once(kind: str) -> None:
    """A run in a process whose telemetry goes there, to its end."""
    with ExitStack() as made:
        listen(Watched(telemetry=kind), "shop-test", "host-1", "storage", made)
        bench = Workbench(nightly, clock=PassingClock())
        assert bench.run(nightly, at="2026-01-01T00:00:00Z").outcome == "succeeded"
        assert hooks.drain(10)


def test_otlp_reaches_a_collector(server: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spans and the metrics are sent by the time the host ends, named after namespace and host."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
    run_once("otlp")
    sent = {request.path: request.body for request in server.requests}
    assert set(sent) == {"/v1/traces", "/v1/metrics"}
    spans = ExportTraceServiceRequest.FromString(sent["/v1/traces"]).resource_spans[0]
    assert {span.name for span in spans.scope_spans[0].spans} == {
        f"{what} nightly" for what in ("tick", "lease", "claim", "run")
    }
    about = {one.key: one.value.string_value for one in spans.resource.attributes}
    assert (about["service.name"], about["service.namespace"]) == ("shop-test", "runonce")
    assert about["service.instance.id"] == "host-1"
    metrics = ExportMetricsServiceRequest.FromString(sent["/v1/metrics"]).resource_metrics[0]
    assert "runonce.runs" in {metric.name for metric in metrics.scope_metrics[0].metrics}


@pytest.mark.slow
def test_a_collector_that_hangs_holds_up_nothing_but_the_last_words(
    server: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run itself is as fast as ever; the process ends a few seconds later."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
    monkeypatch.setattr("runonce.telemetry.set_up.LAST_WORDS", 0.5)
    server.always = HANG
    began = time.monotonic()
    run_once("otlp")
    assert time.monotonic() - began < 5
    server.release.set()


@pytest.mark.slow
def test_azure_monitor_gets_spans_and_metrics(server: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exporter posts envelopes to the connection string's address."""
    key = "00000000-0000-0000-0000-000000000001"
    monkeypatch.setenv(
        "APPLICATIONINSIGHTS_CONNECTION_STRING", f"InstrumentationKey={key};IngestionEndpoint={server.url}/"
    )
    monkeypatch.setenv("APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL", "true")
    run_once("azure")
    envelopes: list[Any] = []
    for request in server.requests:
        body = gzip.decompress(request.body) if request.body[:2] == b"\x1f\x8b" else request.body
        read = json.loads(body)
        envelopes += read if isinstance(read, list) else [read]
    kinds = {envelope["data"]["baseType"] for envelope in envelopes}
    assert {"RemoteDependencyData", "MetricData"} <= kinds
    names = {envelope["data"]["baseData"].get("name") for envelope in envelopes}
    assert "run nightly" in names


@pytest.mark.parametrize("text", ["", "nonsense"])
def test_azure_monitor_without_its_address_is_one_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The message names the setting."""
    monkeypatch.setenv("APPLICATIONINSIGHTS_CONNECTION_STRING", text)
    with (
        pytest.raises(SettingsError, match="APPLICATIONINSIGHTS_CONNECTION_STRING is missing or wrong"),
        ExitStack() as made,
    ):
        listen(Watched(telemetry="azure"), "n", "h", "storage", made)


def test_the_console_shows_spans_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output stays a command's answer."""
    run_once("console")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert '"name": "run nightly"' in captured.err
    assert '"name": "runonce.runs"' in captured.err


@pytest.mark.parametrize(("kind", "extra"), [("otlp", "otel"), ("azure", "azure-monitor")])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, kind: str, extra: str) -> None:
    """One line with what to install."""
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith(("opentelemetry", "azure.monitor")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=rf"RUNONCE_TELEMETRY={kind} .*runonce\[{extra}\]"):  # noqa: SIM117
        with ExitStack() as made:
            listen(Watched(telemetry=kind), "n", "h", "storage", made)


def test_what_is_added_is_removed(monkeypatch: pytest.MonkeyPatch, server: Listener) -> None:
    """The hooks go with the host that added them."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
    with ExitStack() as made:
        listen(Watched(telemetry="otlp"), "n", "h", "storage", made)
        assert hooks.listening("before_run")
    assert not any(hooks.listening(name) for name in hooks.METHODS)


def test_a_second_runtime_of_the_process_leaves_the_hosts_telemetry(
    monkeypatch: pytest.MonkeyPatch, server: Listener
) -> None:
    """What a host has added stays when something else in its process comes and goes."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
    with ExitStack() as host:
        listen(Watched(telemetry="otlp"), "n", "h", "storage", host)
        with ExitStack() as other:
            listen(Watched(telemetry="otlp"), "n", "h", "storage", other)
        assert hooks.listening("before_run")
