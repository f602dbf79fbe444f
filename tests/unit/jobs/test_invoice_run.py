from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runonce.errors import HostStopping, PermanentError
from runonce.hosts.discover import discover
from runonce.testing import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.runs.result import Result

JOBS = Path(__file__).resolve().parents[3] / "examples"
invoice_run = discover(JOBS).jobs["invoice_run"]
module: Any = sys.modules[invoice_run.body.__module__]
shared: Any = sys.modules["examples._invoices"]

SAMPLE = (JOBS / "data" / "invoices.csv").read_text(encoding="utf-8")
OCTOBER, NOVEMBER = "2026-09-30T23:00:00Z", "2026-10-31T23:00:00Z"
HEADER = "InvoiceId,CustomerId,InvoiceDate,BillingCountry,Total\n"


def some(count: int, first: int = 1) -> str:
    return HEADER + "".join(f"{n},7,2026-09-15,Spain,10.01\n" for n in range(first, first + count))


class Provider:
    """Counts the calls to the payment provider; `then` is called after each."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.then: Callable[[int], None] = lambda _: None

    def charge(self, _invoice: Any, key: str, _seconds: float) -> None:
        self.keys.append(key)
        self.then(len(self.keys))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    stand_in = Provider()
    monkeypatch.setattr(module, "charge", stand_in.charge)
    monkeypatch.delenv(module.LATENCY, raising=False)
    return stand_in


@pytest.fixture
def bench() -> Workbench:
    return Workbench(invoice_run)


def ledger(bench: Workbench) -> dict[str, int]:
    rows = bench.stores.runs.scan("test", "entry:invoice_run:", "entry:invoice_run;")
    return {str(row.values["key"]): int(row.values["cents"]) for row in rows}


def summary(bench: Workbench, name: str) -> Any:
    return json.loads(bench.blobs()[f"invoice_runs/{name}.json"])


def run(bench: Workbench, text: str, at: str = OCTOBER) -> Result:
    bench.put("invoices.csv", text)
    return bench.run(invoice_run, at)


def test_every_invoice_of_the_sample_is_charged_once(bench: Workbench, provider: Provider) -> None:
    """The shipped invoices are charged once each, and the summary's total is the file's."""
    assert run(bench, SAMPLE).outcome == "succeeded"
    rows = list(csv.DictReader(SAMPLE.splitlines()))
    assert sorted(provider.keys) == sorted(f"invoice_run:{row['InvoiceId']}" for row in rows)
    assert sum(ledger(bench).values()) == sum(int(row["Total"].replace(".", "")) for row in rows)
    told = summary(bench, "2026-09-30T230000Z")
    assert told["charged"] == 60
    assert told["total"].replace(",", "").replace(".", "") == str(sum(ledger(bench).values()))


def test_an_invoice_of_an_earlier_month_is_left_out(bench: Workbench, provider: Provider) -> None:
    """The next month charges what is new in the file and nothing else."""
    run(bench, some(12))
    assert run(bench, some(15), at=NOVEMBER).outcome == "succeeded"
    assert len(provider.keys) == 15
    assert summary(bench, "2026-10-31T230000Z") == {
        "fire_time": "2026-10-31T23:00:00+00:00",
        "charged": 3,
        "total": "30.03",
    }


def test_a_stop_in_mid_batch_repeats_no_call(bench: Workbench, provider: Provider) -> None:
    """A host that stops after 13 of 25 invoices has all 13 in the ledger, and the next attempt calls for 12."""
    provider.then = lambda calls: bench.stop.set(HostStopping()) if calls == 13 else None
    assert run(bench, some(25)).outcome == "stopped"
    assert len(ledger(bench)) == 13
    other = Workbench(invoice_run, clock=bench.clock)
    other.dispatcher.stores = bench.stores
    other.dispatcher.registry = bench.dispatcher.registry
    assert other.dispatcher.execute(invoice_run, bench.clock.now(), by="timer").attempt == 2
    assert len(provider.keys) == len(set(provider.keys)) == 25


def test_a_retry_goes_on_where_the_provider_failed(bench: Workbench, provider: Provider) -> None:
    """When the provider fails at an invoice, the retry repeats that call under the same key and no other."""

    def fail(calls: int) -> None:
        if calls == 14:
            raise ConnectionError("the provider hung up")

    provider.then = fail
    assert run(bench, some(20)).outcome == "retrying"
    assert len(ledger(bench)) == 13
    provider.then = lambda _: None
    bench.clock.advance(400)
    assert bench.run(invoice_run, OCTOBER).outcome == "succeeded"
    assert provider.keys[13] == provider.keys[14] == "invoice_run:14"
    assert len(provider.keys) == 21
    assert len(ledger(bench)) == 20


def test_a_file_changed_between_attempts_loses_no_invoice(bench: Workbench, provider: Provider) -> None:
    """Rows put before those already charged do not hide behind the position of the first attempt."""

    def fail(calls: int) -> None:
        if calls == 14:
            raise ConnectionError("the provider hung up")

    provider.then = fail
    run(bench, some(20))
    provider.then = lambda _: None
    bench.clock.advance(400)
    more = HEADER + "".join(f"9{n},7,2026-09-15,Spain,1.00\n" for n in range(5))
    assert run(bench, more + some(20).removeprefix(HEADER)).outcome == "succeeded"
    assert len(ledger(bench)) == 25
    assert len(set(provider.keys)) == 25


def test_nothing_is_charged_when_one_row_is_bad(bench: Workbench, provider: Provider) -> None:
    """A bad last row stops the run before its first invoice, and no retry is tried."""
    result = run(bench, some(30) + "31,7,2026-09-15,Spain,ten\n")
    assert result.outcome == "failed"
    assert isinstance(result.error, PermanentError)
    assert provider.keys == []
    assert ledger(bench) == {}


BAD_ROWS = {
    "no number": (",7,2026-09-15,Spain,1.00", "column InvoiceId: '' is not a number; write 1 to 64 letters"),
    "odd number": ("a b,7,2026-09-15,Spain,1.00", "column InvoiceId: 'a b' is not a number"),
    "no customer": ("2,,2026-09-15,Spain,1.00", "column CustomerId: '' is not a number"),
    "no date": ("2,7,,Spain,1.00", "column InvoiceDate: '' is not a date; write year-month-day"),
    "other date": ("2,7,15.09.2026,Spain,1.00", "column InvoiceDate: '15.09.2026' is not a date"),
    "short date": ("2,7,20260915,Spain,1.00", "column InvoiceDate: '20260915' is not a date"),
    "no such day": (
        "2,7,2026-02-30,Spain,1.00",
        "column InvoiceDate: '2026-02-30' is not a day of the calendar",
    ),
    "no country": ("2,7,2026-09-15, ,1.00", "column BillingCountry: '' is not a country; write its name"),
    "control character": (
        "2,7,2026-09-15,Sp\x07ain,1.00",
        "column BillingCountry: 'Sp\\x07ain' is not a country",
    ),
    "no amount": ("2,7,2026-09-15,Spain,", "column Total: '' is not an amount; write digits"),
    "decimal comma": ('2,7,2026-09-15,Spain,"1,50"', "column Total: '1,50' is not an amount"),
    "thousands": ('2,7,2026-09-15,Spain,"1,234.50"', "column Total: '1,234.50' is not an amount"),
    "negative": ("2,7,2026-09-15,Spain,-1.00", "column Total: '-1.00' is not an amount; write digits"),
    "currency": ("2,7,2026-09-15,Spain,€1.00", "column Total: '€1.00' is not an amount"),
    "third of a cent": ("2,7,2026-09-15,Spain,1.005", "column Total: '1.005' is not an amount"),
    "exponent": ("2,7,2026-09-15,Spain,1e3", "column Total: '1e3' is not an amount"),
    "not finite": ("2,7,2026-09-15,Spain,NaN", "column Total: 'NaN' is not an amount"),
    "other digits": (
        "2,7,2026-09-15,Spain,\u0663.\u0660\u0660",
        "column Total: '\u0663.\u0660\u0660' is not",
    ),
    "twice": ("1,7,2026-09-15,Spain,1.00", "column InvoiceId: '1' is on line 2 already; give each invoice"),
    "value missing": ("2,7,2026-09-15,Spain", "4 values where the header has 5 columns; put text that holds"),
    "comma in text": (
        "2,7,2026-09-15,Korea, South,1.00",
        "6 values where the header has 5 columns; put text",
    ),
    "very long": (f"2,7,2026-09-15,Spain,{'9' * 5000}", f"column Total: '{'9' * 40}…' is not an amount"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_one_clear_error(bench: Workbench, provider: Provider, case: str) -> None:
    """A bad row's error is one line that names job, blob, line, column and value, and what to write instead."""
    row, told = BAD_ROWS[case]
    result = run(bench, some(1) + row + "\n" + some(3, first=50).removeprefix(HEADER))
    assert str(result.error).startswith(
        f"Job invoice_run, blob 'invoices.csv', line 3{', ' if 'col' in told[:3] else ': '}"
    )
    assert told in str(result.error)
    assert "\n" not in str(result.error)
    assert result.outcome == "failed"
    assert provider.keys == []


BAD_FILES = {
    "empty": ("", "line 1, column InvoiceId: missing; the first line must name InvoiceId,CustomerId,"),
    "column missing": (some(2).replace("Total", "Amount"), "line 1, column Total: missing"),
    "column twice": (some(2).replace("CustomerId", "InvoiceId"), "line 1, column InvoiceId: twice"),
    "semicolons": (some(2).replace(",", ";"), "column InvoiceId: missing; the first line must name"),
    "no invoices": (
        HEADER,
        "a header and no invoices, so the export probably broke off; upload the whole file",
    ),
    "open quote": (
        some(2) + '9,7,2026-09-15,"Spain,1.00\n10,7,2026-09-15,Spain,1.00\n',
        "line 4: the CSV cannot be read from here on",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_one_clear_error(bench: Workbench, provider: Provider, case: str) -> None:
    """A file that is no list of invoices is told by name, with what it should be."""
    text, told = BAD_FILES[case]
    result = run(bench, text)
    assert str(result.error).startswith("Job invoice_run, blob 'invoices.csv'")
    assert told in str(result.error)
    assert result.outcome == "failed"
    assert provider.keys == []


def test_many_bad_rows_are_told_together() -> None:
    """All bad rows come in one error, a line each, the first ten of them in full."""
    text = some(1) + "".join(f"{n},7,2026-09-15,Spain,x\n" for n in range(2, 16))
    with pytest.raises(PermanentError) as caught:
        shared.read_invoices(text, "file f")
    lines = str(caught.value).splitlines()
    assert [line.split(",")[1] for line in lines[:-1]] == [f" line {n}" for n in range(3, 13)]
    assert lines[-1] == "… and 4 more bad rows."


def test_a_missing_file_is_tried_again(bench: Workbench, provider: Provider) -> None:
    """An input that is not there yet is no permanent error: the retry may find it."""
    result = bench.run(invoice_run, OCTOBER)
    assert result.outcome == "retrying"
    assert "there is no blob 'invoices.csv'" in str(result.error)
    assert provider.keys == []


def test_a_byte_order_mark_and_more_columns_do_no_harm() -> None:
    """What Excel adds, and columns nobody asked for, in any order, are read past."""
    text = "Note,Total,InvoiceId,CustomerId,InvoiceDate,BillingCountry\nx,0.99,A-1,7,2026-09-15,Türkiye\n\n"
    (invoice,) = shared.read_invoices(text, "file f")
    assert (invoice.number, invoice.cents, invoice.country) == ("A-1", 99, "Türkiye")


@pytest.mark.parametrize("value", ["fast", "-1", "nan", "inf", "61"])
def test_a_bad_latency_names_the_setting(
    bench: Workbench, provider: Provider, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """A wrong INVOICE_SECONDS_PER_INVOICE fails the run with its name, its value and what it may be."""
    monkeypatch.setenv(module.LATENCY, value)
    result = run(bench, some(3))
    assert f"INVOICE_SECONDS_PER_INVOICE='{value}' must be a number of seconds from 0 to 60" in str(
        result.error
    )
    assert provider.keys == []


def test_the_stand_in_takes_the_time_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in for the provider waits as long as the setting says."""
    waited: list[float] = []
    monkeypatch.setattr(module.time, "sleep", waited.append)
    monkeypatch.setenv(module.LATENCY, "0.25")
    bench = Workbench(invoice_run)
    assert run(bench, some(2)).outcome == "succeeded"
    assert waited == [0.25, 0.25]
