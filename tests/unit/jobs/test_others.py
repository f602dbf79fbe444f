from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from runonce.hosts.discover import discover
from runonce.testing import Workbench

ROOT = Path(__file__).resolve().parents[3]
JOBS, EXAMPLES = ROOT / "jobs", ROOT / "examples"
jobs = {**discover(JOBS).jobs, **discover(EXAMPLES).jobs}
nightly_report, purge_sessions, exchange_rates = (
    jobs[name] for name in ("nightly_report", "purge_sessions", "exchange_rates")
)
# Taken now: each `discover` imports the files anew.
purge_module: Any = sys.modules[purge_sessions.body.__module__]
rates_module: Any = sys.modules[exchange_rates.body.__module__]
NIGHT = "2026-11-29T00:00:00Z"


@pytest.fixture(autouse=True)
def no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXCHANGE_RATES_URL", raising=False)


def test_the_shipped_jobs_all_load() -> None:
    """Every shipped job file can be imported, and defines the jobs the documentation names."""
    found = [discover(JOBS), discover(EXAMPLES)]
    assert [one.broken for one in found] == [[], []]
    assert [set(one.jobs) for one in found] == [
        {"exchange_rates", "purge_sessions"},
        {"invoice_run", "nightly_report"},
    ]


@pytest.mark.parametrize("name", ["exchange_rates", "purge_sessions"])
def test_what_is_in_the_jobs_folder_runs_as_it_is(name: str) -> None:
    """Without a setting, a file or a service, a job of a fresh checkout succeeds; what needs some is an example."""
    job = discover(JOBS).jobs[name]
    assert Workbench(job).run(job, NIGHT).outcome == "succeeded"


# -- nightly_report --------------------------------------------------------------------------------------------

CSV = """InvoiceId,CustomerId,InvoiceDate,BillingCountry,Total
1,1,2026-11-01,Spain,10.10
2,2,2026-11-02,Japan,5.00
3,1,2026-11-03,Spain,2000.20
4,3,2026-11-04,A|B,5.00
"""


def test_the_report_adds_up_by_country() -> None:
    """Countries come with the largest sum first, exact to the cent, for programs and for people."""
    bench = Workbench(nightly_report)
    bench.put("invoices.csv", CSV)
    assert bench.run(nightly_report, NIGHT).outcome == "succeeded"
    written = bench.blobs()
    expected = b"country,invoices,total\nSpain,2,2010.30\nA|B,1,5.00\nJapan,1,5.00\n"
    assert written["reports/2026-11-29.csv"] == expected
    markdown = written["reports/2026-11-29.md"].decode()
    assert "| Spain | 2 | 2,010.30 |" in markdown
    assert r"| A\|B | 1 | 5.00 |" in markdown
    assert "| **all** | **4** | **2,020.30** |" in markdown


def test_the_report_is_the_same_bytes_every_time() -> None:
    """Two runs over the same invoices, in whatever order they come, write the same reports."""
    header, *rows = CSV.splitlines()
    contents = []
    for order in (rows, rows[::-1]):
        bench = Workbench(nightly_report)
        bench.put("invoices.csv", "\n".join([header, *order]))
        bench.run(nightly_report, NIGHT)
        contents.append({name: data for name, data in bench.blobs().items() if name.startswith("reports/")})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 2


def test_a_bad_invoice_stops_the_report() -> None:
    """A bad row gives an error that names this job, and no report that looks complete."""
    bench = Workbench(nightly_report)
    bench.put("invoices.csv", CSV.replace("5.00", "5,00", 1))
    result = bench.run(nightly_report, NIGHT)
    assert result.outcome == "failed"
    assert "Job nightly_report, blob 'invoices.csv', line 3: 6 values" in str(result.error)
    assert list(bench.blobs()) == ["invoices.csv"]


# -- purge_sessions --------------------------------------------------------------------------------------------


def session(expires: str) -> str:
    return json.dumps({"user": "ada", "expires": expires})


def test_expired_sessions_go_and_others_stay() -> None:
    """A session goes at the instant it expires, whatever its offset, and not before."""
    bench = Workbench(purge_sessions)
    bench.put("sessions/a.json", session("2026-11-29T02:15:00Z"))
    bench.put("sessions/b.json", session("2026-11-29T02:15:01Z"))
    bench.put("sessions/c.json", session("2026-11-29T05:00:00+03:00"))
    bench.put("other/d.json", session("2020-01-01T00:00:00Z"))
    assert bench.run(purge_sessions, "2026-11-29T02:15:00Z").outcome == "succeeded"
    assert list(bench.blobs()) == ["other/d.json", "sessions/b.json"]


def test_the_sample_sessions_are_purged_by_their_expiry() -> None:
    """Of the shipped sessions the expired ones go."""
    bench = Workbench(purge_sessions)
    for file in (EXAMPLES / "data" / "sessions").glob("*.json"):
        bench.put(f"sessions/{file.name}", file.read_bytes())
    assert len(bench.blobs()) == 4
    bench.run(purge_sessions, "2026-11-29T02:15:00Z")
    assert len(bench.blobs()) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'{"expires": 5}',
        b'{"expires": "soon"}',
        b'{"expires": "2026-11-29T01:00:00"}',
        b"[" * 100_000,
    ],
)
def test_an_unreadable_session_stays_and_stops_nothing(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A session that says no expiry is named in the log and left alone; the ones after it are dealt with."""
    bench = Workbench(purge_sessions)
    bench.put("sessions/a.json", content)
    bench.put("sessions/b.json", session("2020-01-01T00:00:00Z"))
    assert bench.run(purge_sessions, "2026-11-29T02:15:00Z").outcome == "succeeded"
    assert list(bench.blobs()) == ["sessions/a.json"]
    assert "sessions/a.json stays" in caplog.text


def test_a_purge_goes_on_after_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails after a batch goes on behind it, although the list of sessions is shorter by then."""
    bench = Workbench(purge_sessions)
    for n in range(130):
        bench.put(
            f"sessions/{n:03d}.json", session("2020-01-01T00:00:00Z" if n % 2 else "2030-01-01T00:00:00Z")
        )
    purge, looked_at = purge_module.purge, []

    def counted(run: Any, name: str) -> bool:
        looked_at.append(name)
        if len(looked_at) == 70:
            raise ConnectionError("the network went away")
        return bool(purge(run, name))

    monkeypatch.setattr(purge_module, "purge", counted)
    assert bench.run(purge_sessions, "2026-11-29T02:15:00Z").outcome == "retrying"
    bench.clock.advance(100)
    assert bench.run(purge_sessions, "2026-11-29T02:15:00Z").outcome == "succeeded"
    assert looked_at[70] == "sessions/050.json"
    assert len(bench.blobs()) == 65


# -- exchange_rates --------------------------------------------------------------------------------------------


def latest(bench: Workbench) -> Any:
    return json.loads(bench.blobs()["rates/latest.json"])


def test_rates_come_from_the_sample_when_there_is_nothing_else() -> None:
    """A fresh checkout has rates, each with the digits it came with."""
    bench = Workbench(exchange_rates)
    assert bench.run(exchange_rates, NIGHT).outcome == "succeeded"
    assert latest(bench)["rates"] == {"GBP": "0.8412", "JPY": "172.35", "TRY": "48.912", "USD": "1.0842"}


def test_rates_in_the_source_blob_are_preferred_to_the_sample() -> None:
    """What somebody put into rates/source.json is used, and the fire time is told with it."""
    bench = Workbench(exchange_rates)
    bench.put("rates/source.json", '{"base": "EUR", "rates": {"USD": 1.10}}')
    bench.run(exchange_rates, NIGHT)
    assert latest(bench) == {
        "base": "EUR",
        "fire_time": "2026-11-29T00:00:00+00:00",
        "rates": {"USD": "1.10"},
    }


def test_an_older_run_cannot_put_old_rates_over_new_ones() -> None:
    """Rates written under a newer fencing token stay."""
    bench = Workbench(exchange_rates)
    bench.run(exchange_rates, NIGHT)
    item = bench.stores.blobs.read("test/rates/latest.json")
    assert item is not None
    newer = {**item.metadata, "runonce_token": "99"}
    bench.stores.blobs.write(
        "test/rates/latest.json", b"newer", newer, etag=item.etag, content_type="text/plain"
    )
    assert bench.run(exchange_rates, "2026-11-29T00:15:00Z").outcome == "retrying"
    assert bench.blobs()["rates/latest.json"] == b"newer"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("nonsense", "this is not valid JSON"),
        ("[1]", "it must be like"),
        ('{"base": "USD", "rates": {"EUR": 1}}', 'with "EUR" as its base'),
        ('{"base": "EUR", "rates": {}}', "one rate at least"),
        ('{"base": "EUR", "rates": {"usd": 1}}', "'usd' is not a currency; write three capital letters"),
        ('{"base": "EUR", "rates": {"USD": -1}}', "currency USD: '-1' is not a rate; write a number over 0"),
        ('{"base": "EUR", "rates": {"USD": 0.00}}', "currency USD: '0.00' is not a rate"),
        ('{"base": "EUR", "rates": {"USD": NaN}}', "currency USD: 'NaN' is not a rate"),
        ('{"base": "EUR", "rates": {"USD": null}}', "currency USD: None is not a rate"),
    ],
)
def test_bad_rates_are_one_clear_error_and_keep_the_old_ones(content: str, told: str) -> None:
    """Rates that cannot be right are refused with their place and the remedy; the last good ones stay."""
    bench = Workbench(exchange_rates)
    bench.run(exchange_rates, NIGHT)
    before = bench.blobs()["rates/latest.json"]
    bench.put("rates/source.json", content)
    result = bench.run(exchange_rates, "2026-11-29T00:15:00Z")
    assert result.outcome == "retrying"
    assert str(result.error).startswith("Job exchange_rates, blob 'rates/source.json'")
    assert told in str(result.error)
    assert bench.blobs()["rates/latest.json"] == before


@pytest.mark.parametrize("url", ["file:///etc/passwd", "rates.json?key=secret", "https://"])
def test_a_url_that_is_none_is_refused_without_repeating_it(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Only http and https are asked, and what may hold a key is not repeated."""
    monkeypatch.setenv("EXCHANGE_RATES_URL", url)
    result = Workbench(exchange_rates).run(exchange_rates, NIGHT)
    assert result.outcome == "failed"
    assert "EXCHANGE_RATES_URL is not an http or https URL" in str(result.error)
    assert "secret" not in str(result.error)


class Answer(io.BytesIO):
    """What urlopen returns."""


def test_the_url_is_asked_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """With EXCHANGE_RATES_URL set, its answer is what counts."""
    monkeypatch.setenv("EXCHANGE_RATES_URL", "https://rates.example/latest?key=secret")
    answer = b'{"base": "EUR", "rates": {"USD": "1.23"}}'
    monkeypatch.setattr(rates_module.urllib.request, "urlopen", lambda *_a, **_k: Answer(answer))
    bench = Workbench(exchange_rates)
    assert bench.run(exchange_rates, NIGHT).outcome == "succeeded"
    assert latest(bench)["rates"] == {"USD": "1.23"}


def test_a_url_without_answer_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that does not answer is named, its key is not, and the run is tried again."""

    def urlopen(*_a: Any, **_k: Any) -> Any:
        raise TimeoutError("timed out")

    monkeypatch.setenv("EXCHANGE_RATES_URL", "https://rates.example/latest?key=secret")
    monkeypatch.setattr(rates_module.urllib.request, "urlopen", urlopen)
    result = Workbench(exchange_rates).run(exchange_rates, NIGHT)
    assert result.outcome == "retrying"
    assert "rates.example, which EXCHANGE_RATES_URL names, gave no answer (TimeoutError: timed out)" in str(
        result.error
    )
    assert "secret" not in str(result.error)


def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer over the limit is refused after the limit."""
    monkeypatch.setenv("EXCHANGE_RATES_URL", "https://rates.example/latest")
    monkeypatch.setattr(rates_module.urllib.request, "urlopen", lambda *_a, **_k: Answer(b"x" * 2_000_000))
    result = Workbench(exchange_rates).run(exchange_rates, NIGHT)
    assert "rates.example answered with over 1000000 bytes" in str(result.error)


def test_the_schedules_are_as_told() -> None:
    """Invoices on the first at 02:00 and the report at 03:00 in Istanbul, rates every quarter of an hour."""
    noon = datetime(2026, 11, 29, 12, tzinfo=UTC)
    upcoming = {name: job.schedule.next(noon) for name, job in jobs.items()}
    assert upcoming["invoice_run"] == datetime(2026, 11, 30, 23, tzinfo=UTC)
    assert upcoming["nightly_report"] == datetime(2026, 11, 30, 0, tzinfo=UTC)
    assert upcoming["exchange_rates"] == datetime(2026, 11, 29, 12, 15, tzinfo=UTC)
    assert upcoming["purge_sessions"] == datetime(2026, 11, 29, 12, 15, tzinfo=UTC)
