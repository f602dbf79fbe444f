"""The form of the command line's log."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import delivery, handling, silence
from support.telemetry import recording

from runonce.cli import logs
from runonce.errors import PermanentError, SettingsError
from runonce.runs.definition import scheduled
from runonce.testing import Workbench
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.runs.run import Run


@pytest.fixture(autouse=True)
def afterwards() -> Iterator[None]:
    """The root logger as it was."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level, logging.getLogger("runonce").level)
    yield
    root.handlers[:], level, own = before
    root.setLevel(level)
    logging.getLogger("runonce").setLevel(own)


@scheduled("0 0 3 * * *")
def nightly(run: Run) -> None:
    """Says something with odd characters, and fails."""
    run.log.info('100%% of "ş"\nand more')
    raise PermanentError("no rates")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What was logged, each line a JSON object."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_lines_say_whose_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record is one line and one object; a run's have job, fire time, attempt and holder."""
    monkeypatch.setenv("RUNONCE_LOG", "json")
    logs.set_up(verbose=False, level=logging.INFO)
    bench = Workbench(nightly, clock=PassingClock())
    result = bench.run(nightly, at="2026-01-01T00:00:00Z")
    assert result.outcome == "failed"
    of_run = [line for line in lines(capsys) if line["logger"] == "runonce.jobs.nightly"]
    assert [line["level"] for line in of_run] == ["INFO", "INFO", "ERROR"]
    assert of_run[1]["message"] == '[nightly 2026-01-01T00:00:00Z #1] 100%% of "ş"\nand more'
    for line in of_run:
        assert (line["job"], line["fire_time"], line["attempt"]) == ("nightly", "2026-01-01T00:00:00Z", 1)
        assert len(line["holder"]) == 36
        assert "trace_id" not in line
        assert line["time"].endswith("Z")
    assert "PermanentError: no rates" in of_run[2]["exception"]


def test_json_lines_have_the_trace_they_belong_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With telemetry each line of the code and of the run's end has the trace's and the span's id."""
    monkeypatch.setenv("RUNONCE_LOG", "json")
    logs.set_up(verbose=False, level=logging.INFO)
    bench = Workbench(nightly, clock=PassingClock())
    silence(bench.deliverer)
    with recording() as recorded:
        bench.run(nightly, at="2026-01-01T00:00:00Z")
        bench.deliverer.deliver(handling(lambda message: message.log.info("working")), delivery())
        traces = {
            name: recorded.span(name).get_span_context() for name in ("run nightly", "process invoices")
        }
    logged = lines(capsys)
    for name, logger in (("run nightly", "nightly"), ("process invoices", "send_invoice")):
        of_it = [line for line in logged if line["logger"] == f"runonce.jobs.{logger}" and "trace_id" in line]
        assert len(of_it) >= 2
        assert {line["trace_id"] for line in of_it} == {f"{traces[name].trace_id:032x}"}
        assert {line["span_id"] for line in of_it} == {f"{traces[name].span_id:016x}"}
    assert {line["message_id"] for line in logged if line["logger"] == "runonce.jobs.send_invoice"} == {"m-1"}


def test_text_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """One plain line a record."""
    logs.set_up(verbose=False, level=logging.INFO)
    logging.getLogger("runonce.test").info("well")
    assert capsys.readouterr().err.endswith(" INFO    well\n")


def test_another_form_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the setting, the value and what it can be."""
    monkeypatch.setenv("RUNONCE_LOG", "xml")
    with pytest.raises(SettingsError, match="RUNONCE_LOG='xml' must be one of text, json, or not set"):
        logs.set_up(verbose=False)
