"""The dashboard in a real browser, on a real storage emulator: what its pages show, and what its forms do."""

from __future__ import annotations

import asyncio
import http.client
import logging
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from support.namespaces import fresh_settings

from runonce import Message, PermanentError, Run, handler, scheduled
from runonce.errors import JobFileError, SettingsError
from runonce.hosts.dashboard.local import LOOK, served
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.messages.consumer import Consumer
from runonce.messages.sending import outgoing, send_all
from runonce.runs.dispatch import Started
from runonce.runs.presence import Presence
from runonce.runs.rows import Outcome
from runonce.runs.status import runs_at
from runonce.runs.table import read_job
from runonce.runs.trail import actions
from runonce.settings import Settings
from runonce.stores.azure.stores import azure_stores
from runonce.stores.columns import to_text
from tests.support.browser import browser as any_browser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Calls
    from playwright.sync_api import Browser, Page

    from runonce.runs.definition import ScheduledJob

HOUR = timedelta(hours=1)
NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
MARKUP = "<script>document.title = 'owned'</script>"
fails = threading.Event()


@scheduled("0 0 * * * *", name="invoices", retries=0)
def invoices(run: Run, *, region: str = "eu") -> None:
    """Send the hour's invoices."""
    for _ in run.batches(range(20), size=10):
        run.log.info("a batch for %s", region)
    if fails.is_set():
        raise PermanentError(f"the ledger is closed {MARKUP}")


@scheduled("0 30 3 * * *", name="purge", time_zone="Europe/Berlin", on_abandoned="hold")
def purge(run: Run) -> None:
    """Remove what is old."""


@handler(queue="send-invoice", key="id", retries=0)
def send_invoice(message: Message) -> None:  # noqa: ARG001
    """Refuse everything."""
    raise PermanentError(f"no such customer {MARKUP}")


JOBS: tuple[ScheduledJob, ...] = (invoices, purge)


class Site:
    """A namespace with a bad night behind it, and its dashboard."""

    def __init__(self, runtime: Runtime, url: str) -> None:
        self.runtime = runtime
        self.url = url.rstrip("/")

    def request(
        self, method: str, path: str, body: str = "", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """What a program gets that is no browser."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=20)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text

    def outcome(self, job: str, fire_time: datetime) -> str:
        return runs_at(self.runtime.dispatcher, job, fire_time)[0].outcome


def made(azurite: str) -> Runtime:
    """Three good hours, a failed one, a job that is held, and a dead letter."""
    found = Discovered({job.name: job for job in JOBS}, {send_invoice.name: send_invoice})
    found.broken.append(JobFileError(f"jobs/report.py cannot be imported: {MARKUP}"))
    runtime = Runtime(fresh_settings(azurite), found=found)
    for hours in (4, 3, 2):
        runtime.dispatcher.execute(invoices, NOW - hours * HOUR, by="timer")
    fails.set()
    runtime.dispatcher.execute(invoices, NOW - HOUR, by="timer")
    fails.clear()
    held = purge.schedule.previous(NOW)
    assert held is not None
    started = runtime.dispatcher.begin(purge, held, by="timer")
    assert isinstance(started, Started)
    started.lease.release()  # as if its host had died
    runtime.dispatcher.execute(purge, held, by="request")
    send_all(runtime.sender, send_invoice, [outgoing(send_invoice, {"id": "1001"})])
    consumer = Consumer(runtime.deliverer, runtime.transport, send_invoice)
    consumer.run(max_messages=1, max_wait=20.0)
    return runtime


@pytest.fixture(scope="module")
def site(azurite: str) -> Iterator[Site]:
    with made(azurite) as runtime, served(runtime, 0, may_act=True) as url:
        yield Site(runtime, url)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with any_browser() as one:
        yield one


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page without script, as every form and page has to work."""
    context = chromium.new_context(java_script_enabled=False)
    context.set_default_timeout(10_000)
    yield context.new_page()
    context.close()


def addresses() -> list[str]:
    failed = quote(to_text(NOW - HOUR))
    return [
        "/",
        "/jobs/invoices",
        "/jobs/purge",
        f"/jobs/invoices/runs/{failed}",
        "/jobs/invoices/break-lease",
        "/handlers/send_invoice",
        "/handlers/send_invoice?key=1001",
        "/dead-letters",
        "/held",
        "/audit",
        "/trail",
        "/jobs/nobody",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_every_page_can_be_read_by_everybody(site: Site, chromium: Browser, width: int, scheme: Any) -> None:
    """No rule of axe is broken, nothing but tables scrolls sideways, no markup is carried out, nothing is refused."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    shown = context.new_page()
    said: list[str] = []
    shown.on("console", lambda message: said.append(message.text))
    for address in addresses():
        shown.goto(site.url + address)
        broken = Axe().run(shown)
        assert broken.violations_count == 0, f"{address}: {broken.generate_report()}"
        assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), address
        assert shown.title() != "owned"
    context.close()
    assert [text for text in said if "404" not in text] == []


def test_the_overview_answers_the_questions_of_a_bad_night(site: Site, page: Page) -> None:
    """Is a host alive, what failed, since when, how often, why, what is held, dead, broken, and what comes next."""
    page.goto(site.url + "/")
    wrong = page.locator("section", has=page.get_by_role("heading", name="What is wrong")).inner_text()
    assert "No host is alive" in wrong
    assert "jobs/report.py cannot be imported" in wrong
    assert re.search(r"invoices: .*failed", wrong)
    assert re.search(r"1 in a row failed, last success \d+ \w+", wrong)
    assert f"the ledger is closed {MARKUP}" in wrong
    assert "purge: " in wrong
    assert re.search(r"send_invoice: dead letters, 0 held, 1 dead letters", wrong)
    jobs = page.locator("section", has=page.get_by_role("heading", name="Jobs", exact=True)).inner_text()
    assert to_text(NOW + HOUR)[:10] in jobs
    assert wrong.index("No host is alive") < wrong.index("invoices")
    Presence(site.runtime.runs, [job.name for job in JOBS], NOW).check_in()
    page.reload()
    assert "No host is alive" not in page.inner_text("main")


def test_a_run_shows_its_traceback_and_its_log(site: Site, page: Page) -> None:
    """Each attempt with its stack, the token, and the lines that this process logged about it."""
    logging.getLogger("runonce").setLevel(logging.INFO)
    fails.set()
    at = NOW - 5 * HOUR
    site.runtime.dispatcher.execute(invoices, at, by="hand")
    fails.clear()
    page.goto(f"{site.url}/jobs/invoices/runs/{quote(to_text(at))}")
    text = page.inner_text("main")
    assert "Traceback (most recent call last)" in text
    assert f"PermanentError: the ledger is closed {MARKUP}" in text
    assert "a batch for eu" in text
    assert "20 items done" in text


def submit(page: Page, button: str, **fields: str) -> str:
    """Fill in a form and send it; what the page says then."""
    form = page.locator("form", has=page.get_by_role("button", name=button, exact=True)).first
    for name, value in fields.items():
        form.locator(f'[name="{name.replace("__", ":")}"]').fill(value)
    with page.expect_navigation():  # else the words that stood there before could be read
        form.get_by_role("button", name=button, exact=True).click()
    return page.inner_text("[role=status]")


def test_a_job_is_paused_and_resumed(site: Site, page: Page) -> None:
    """Its row says so with the reason, and the trail says who."""
    page.goto(f"{site.url}/jobs/purge")
    assert "is paused" in submit(page, "Pause", why="the disk is moved")
    assert read_job(site.runtime.runs, "purge")[0].paused_why.startswith("the disk is moved")
    assert "the disk is moved" in page.inner_text("main")
    assert "is resumed" in submit(page, "Resume", why="done")
    assert read_job(site.runtime.runs, "purge")[0].paused_at is None
    assert [(one.did, one.why) for one in actions(site.runtime.runs, 2, "purge")] == [
        ("resumed", "done"),
        ("paused", "the disk is moved"),
    ]


def test_a_run_is_asked_for_with_parameters(site: Site, page: Page) -> None:
    """A fire time of the schedule with parameters; another instant only when it is wanted all the same."""
    page.goto(f"{site.url}/jobs/invoices")
    at = NOW - 6 * HOUR
    assert "asked for" in submit(page, "Run", at=to_text(at), param__region="us")
    pending = read_job(site.runtime.runs, "invoices")[0].pending[at]
    assert (pending.why, pending.params) == ("asked", '{"region":"us"}')
    page.goto(f"{site.url}/jobs/invoices")
    page.locator('[name="at"]').fill(to_text(NOW - 6 * HOUR + timedelta(minutes=7)))
    page.get_by_role("button", name="Run", exact=True).click()
    assert "does not name" in page.inner_text("[role=alert]")


def test_a_backfill_says_first_what_it_would_do(site: Site, page: Page) -> None:
    """Without the box it names the fire times; with it each is asked for."""
    page.goto(f"{site.url}/jobs/invoices")
    span = {"from": to_text(NOW - 10 * HOUR), "to": to_text(NOW - 8 * HOUR)}
    assert "would run 3 of 3" in submit(page, "Backfill", **span)
    assert NOW - 9 * HOUR not in read_job(site.runtime.runs, "invoices")[0].pending
    page.locator('[name="sure"]').check()
    assert "3 fire times are asked for" in submit(page, "Backfill", **span)
    assert NOW - 9 * HOUR in read_job(site.runtime.runs, "invoices")[0].pending


def test_what_is_held_is_decided(site: Site, page: Page) -> None:
    """From the list of what is held to the run, where it is marked; then it is held no more."""
    page.goto(f"{site.url}/held")
    page.get_by_role("link", name=re.compile("^purge")).click()
    assert "counts as done" in submit(page, "Mark as done", why="the log of the database says so")
    page.goto(f"{site.url}/held")
    assert page.get_by_role("link", name=re.compile("^purge")).count() == 0


@pytest.mark.parametrize(
    ("button", "why", "outcome", "pending"),
    [
        ("Go on from its checkpoint", "", Outcome.FAILED, "resumed"),
        ("Run it again from its beginning", "", Outcome.FAILED, "replayed"),
        ("Mark as failed", "it is", Outcome.FAILED, ""),
        ("Mark as done", "it was", Outcome.SUCCEEDED, ""),
    ],
)
def test_a_failed_run_is_decided(
    site: Site, page: Page, button: str, why: str, outcome: str, pending: str
) -> None:
    """Each decision of an operator, on a failed run's page."""
    at = NOW - (20 + hash(button) % 1000) * HOUR
    fails.set()
    site.runtime.dispatcher.execute(invoices, at, by="hand")
    fails.clear()
    page.goto(f"{site.url}/jobs/invoices/runs/{quote(to_text(at))}")
    submit(page, button, why=why)
    assert site.outcome("invoices", at) == outcome
    entry = read_job(site.runtime.runs, "invoices")[0].pending.get(at)
    assert (entry.why if entry else "") == pending


def test_a_waiting_run_is_cancelled(site: Site, page: Page) -> None:
    """Nothing takes it up again."""
    at = NOW - 2000 * HOUR
    fails.set()
    site.runtime.dispatcher.execute(invoices, at, by="hand")
    fails.clear()
    page.goto(f"{site.url}/jobs/invoices/runs/{quote(to_text(at))}")
    submit(page, "Go on from its checkpoint")
    submit(page, "Cancel it", why="not wanted")
    assert site.outcome("invoices", at) == Outcome.CANCELLED


def test_a_lease_is_broken_once_the_name_is_typed(site: Site, page: Page) -> None:
    """It asks twice: on a page of its own, for the job's name."""
    lock = site.runtime.runs.lock_name("purge")
    assert site.runtime.stores.leases.acquire(lock, "11111111-1111-1111-1111-111111111111", 15)
    page.goto(f"{site.url}/jobs/purge")
    page.get_by_role("link", name="Break its lease").click()
    page.locator('[name="name"]').fill("invoices")
    page.locator('[name="why"]').fill("it hangs")
    page.get_by_role("button", name="Break it").click()
    assert "Type the job's name" in page.inner_text("[role=alert]")
    assert site.runtime.stores.leases.held(lock)
    page.goto(f"{site.url}/jobs/purge/break-lease")
    assert "is broken" in submit(page, "Break it", name="purge", why="it hangs")
    assert not site.runtime.stores.leases.held(lock)
    assert actions(site.runtime.runs, 1, "purge")[0].did == "broke lease"


def test_a_dead_letter_is_replayed(site: Site, page: Page) -> None:
    """Its reason is shown as text, and a click sends it through again."""
    page.goto(f"{site.url}/dead-letters")
    assert "1001" in page.inner_text("main")
    assert MARKUP in page.inner_text("main")
    assert "1 replayed" in submit(page, "Replay")
    assert actions(site.runtime.runs, 1, "send_invoice")[0].did == "replayed"


def token(site: Site) -> tuple[str, str]:
    """The cookie and the hidden field of a page's forms."""
    _, headers, text = site.request("GET", "/jobs/purge")
    found = re.search(r'name="form" value="([^"]+)"', text)
    assert found is not None
    return headers["set-cookie"].partition(";")[0], found[1]


def test_a_form_of_another_site_is_refused(site: Site) -> None:
    """By its origin, by what the browser says of it, and for want of the token; the right one goes through."""
    cookie, field = token(site)
    path, body = "/jobs/purge/pause", f"why=x&form={field}"
    here = urlsplit(site.url).netloc
    refused: list[dict[str, str]] = [
        {"cookie": cookie, "origin": "https://evil.example"},
        {"cookie": cookie, "origin": "null"},
        {"cookie": cookie, "sec_fetch_site": "cross-site"},
        {},
    ]
    for headers in refused:
        assert site.request("POST", path, body, **headers)[0] == 403
    assert site.request("POST", path, "why=x&form=guessed", cookie=cookie)[0] == 403
    assert site.request("POST", path, f"why={'x' * 70_000}&form={field}", cookie=cookie)[0] == 413
    assert read_job(site.runtime.runs, "purge")[0].paused_at is None
    assert site.request("POST", path, body, cookie=cookie, origin=f"http://{here}")[0] == 303
    assert site.request("POST", "/jobs/purge/resume", body, cookie=cookie)[0] == 303


def test_a_name_that_leads_here_is_refused(site: Site) -> None:
    """A page of another name on this address, as after DNS rebinding, sees nothing."""
    assert site.request("GET", "/", host="evil.example")[0] == 421
    assert site.request("GET", "/", host="localhost:1")[0] == 200


def test_every_answer_has_its_headers(site: Site) -> None:
    """No script or style but our own, no frame, no type guessing, nothing kept, no address told to others."""
    for address in addresses():
        _, headers, text = site.request("GET", address)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin")
        assert headers["cache-control"] == "no-store"
        assert " style=" not in text
        assert " onclick=" not in text


def test_who_may_only_look_has_no_form(site: Site) -> None:
    """Read-only: no form is shown, and one that is sent all the same is refused."""
    with served(site.runtime, 0, may_act=False) as url:
        reader = Site(site.runtime, url)
        _, headers, text = reader.request("GET", "/jobs/purge")
        assert "<button" not in text
        assert "set-cookie" not in headers
        assert reader.request("POST", "/jobs/purge/pause", "why=x", cookie="runonce-form=a")[0] == 403


def test_storage_that_is_away_is_said(azurite: str) -> None:
    """One sentence instead of a stack, and the page is there again when storage is."""
    settings = fresh_settings(
        azurite.replace("127.0.0.1", "127.0.0.2").replace("devstoreaccount1;", "devstoreaccount1;")
    )
    with Runtime(settings, found=Discovered({})) as runtime, served(runtime, 0, may_act=True) as url:
        status, _, text = Site(runtime, url).request("GET", "/")
    assert status == 503
    assert "That did not work" in text


def test_a_server_that_nobody_asks_looks_twice_a_second_whether_it_is_to_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes no more often, for an idle host takes as little as it can, and ends when it is told to."""
    waits: list[float] = []
    sleep, waited = asyncio.sleep, threading.Event()

    async def noting(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            waited.set()
        await sleep(seconds)

    monkeypatch.setattr("runonce.hosts.dashboard.local.asyncio.sleep", noting)
    with served(site.runtime, 0, may_act=False) as url:
        assert waited.wait(20)
        assert Site(site.runtime, url).request("GET", "/")[0] == 200
    assert set(waits[:3]) == {LOOK}
    assert LOOK >= 0.5
    with pytest.raises(ConnectionRefusedError):
        Site(site.runtime, url).request("GET", "/")


@pytest.mark.slow
def test_pages_cost_calls_that_do_not_grow_with_history(azurite: str, calls: Calls) -> None:
    """The overview makes as many calls after fifty runs as after one, and each page has a bound."""
    settings = fresh_settings(azurite)
    stores = azure_stores(settings, transport=calls)
    found = Discovered({job.name: job for job in JOBS})
    counted = []
    with Runtime(settings, found=found, stores=stores) as runtime, served(runtime, 0, may_act=True) as url:
        asked = Site(runtime, url)
        for runs in (1, 50):
            for hours in range(1, runs + 1):
                runtime.dispatcher.execute(invoices, NOW - hours * HOUR, by="hand")
            counts = {}
            for address in ("/", "/jobs/invoices", "/held", "/audit", "/trail", "/dead-letters"):
                calls.made.clear()
                assert asked.request("GET", address)[0] == 200
                counts[address] = len(calls.made)
            counted.append(counts)
    assert counted[0] == counted[1]
    assert counted[0]["/"] <= 8
    assert max(counted[0].values()) <= 8


@pytest.mark.parametrize("said", ["on", "write", "1"])
def test_a_setting_that_is_none_is_refused(said: str) -> None:
    """RUNONCE_DASHBOARD with another word names the words there are."""
    here = {"RUNONCE_STORAGE": "UseDevelopmentStorage=true"}
    with pytest.raises(SettingsError, match=f"RUNONCE_DASHBOARD={said!r} must be off or read or act"):
        Settings.from_env({**here, "RUNONCE_DASHBOARD": said})
    assert Settings.from_env({**here, "RUNONCE_DASHBOARD": " read "}).dashboard == "read"
    assert Settings.from_env(here).dashboard == ""


@pytest.mark.slow
def test_a_taken_port_is_said(site: Site) -> None:
    """A second host on the same port is told to take another."""
    port = urlsplit(site.url).port
    assert port is not None
    with (
        pytest.raises(SettingsError, match=f"Port {port} of this machine is taken"),
        served(site.runtime, port, may_act=True),
    ):
        pass
