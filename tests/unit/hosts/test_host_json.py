from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.functions_app import ROOT

from runonce.hosts.discover import discover
from runonce.hosts.functions.host_json import check_host_json, longest_run
from runonce.messages.definition import handler
from runonce.runs.definition import scheduled

if TYPE_CHECKING:
    from runonce.messages.definition import Handler
    from runonce.runs.definition import ScheduledJob
    from runonce.settings import TransportName


def take(**options: Any) -> Handler:
    def body(message: Any) -> None:
        """Do nothing."""

    return handler(queue="invoices", key="id", name="take", **options)(body)


def job(name: str = "nightly", **options: Any) -> ScheduledJob:
    def body(run: Any) -> None:
        """Do nothing."""

    return scheduled("0 0 3 * * *", name=name, **options)(body)


SHIPPED = json.loads((ROOT / "host.json").read_text())


def changed(path: str, value: Any) -> str:
    """The shipped file with one value changed, or left out (None)."""
    content = json.loads(json.dumps(SHIPPED))
    place = content
    *folders, last = path.split(".")
    for folder in folders:
        place = place.setdefault(folder, {})
    place[last] = value
    if value is None:
        del place[last]
    return json.dumps(content)


def look(
    text: str, *handlers: Handler, transport: TransportName = "servicebus", **environ: str
) -> list[tuple[str, bool]]:
    found = check_host_json(text, environ, [], handlers or [take()], transport)
    return [(finding.text, finding.fatal) for finding in found]


@pytest.mark.parametrize("transport", ["servicebus", "storage"])
def test_the_shipped_file_fits_the_shipped_handlers(transport: TransportName) -> None:
    """What is in the repository has nothing to be said about, on either transport; nor have the defaults."""
    shipped = discover(ROOT / "jobs")
    jobs, handlers = shipped.jobs.values(), shipped.handlers.values()
    assert check_host_json(json.dumps(SHIPPED), {}, jobs, handlers, transport) == []
    assert check_host_json(json.dumps(SHIPPED), {}, [job()], [take()], transport) == []


BUS, QUEUES = "extensions.serviceBus", "extensions.queues"


@pytest.mark.parametrize(
    ("transport", "path", "value", "options", "said", "fatal"),
    [
        ("storage", f"{QUEUES}.messageEncoding", "none", {}, 'messageEncoding="none": the toolkit writes Base64', True),
        ("storage", f"{QUEUES}.messageEncoding", "base64", {"queue_encoding": "none"}, "decodes every text", True),
        ("servicebus", f"{BUS}.autoCompleteMessages", False, {}, "autoCompleteMessages=false: a Python", True),
        ("servicebus", f"{BUS}.prefetchCount", 20, {}, "prefetchCount=20: the locks", False),
        (
            "servicebus",
            f"{BUS}.maxAutoLockRenewalDuration",
            "00:05:00",
            {"max_runtime": 900},
            "may run for 00:15:00, longer than host.json extensions.serviceBus.maxAutoLockRenewalDuration=00:05:00",
            False,
        ),
        ("servicebus", f"{BUS}.maxAutoLockRenewalDuration", None, {"max_runtime": 900}, "value to 00:15:00", False),
        ("storage", f"{QUEUES}.visibilityTimeout", None, {}, "visibilityTimeout=00:00:00: a message whose", False),
        ("storage", f"{QUEUES}.maxDequeueCount", 1, {}, "when its host died 1 time; set 5", False),
        ("servicebus", "functionTimeout", "00:04:00", {"max_runtime": 240}, "functionTimeout=00:04:00 ends", False),
        ("servicebus", "functionTimeout", "00:30:00", {"max_runtime": None}, "no max_runtime, and", False),
        ("servicebus", "functionTimeout", "00:30:00", {"max_runtime": 1750}, "is told to end after 1740 s", False),
        ("servicebus", "functionTimeout", "soon", {}, 'functionTimeout="soon": write hours:minutes:seconds', True),
        ("servicebus", f"{BUS}.prefetchCount", "many", {}, 'prefetchCount="many": write 0 or another one', True),
        ("storage", f"{QUEUES}.batchSize", True, {}, "batchSize=true: write 16", True),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_told_with_its_remedy(
    transport: TransportName, path: str, value: Any, options: dict[str, Any], said: str, fatal: bool
) -> None:
    """Value, handler and remedy are named; what could handle no message is fatal, the rest a warning."""
    (text, is_fatal), *others = look(changed(path, value), take(**options), transport=transport)
    assert not others or fatal  # what cannot be read counts as the default, which may not fit either
    assert said in text
    assert is_fatal is fatal
    if not fatal:
        assert "take" in text


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_file_that_cannot_be_read_is_fatal(text: str) -> None:
    """One finding, which says so."""
    [(said, fatal)] = look(text)
    assert "host.json" in said
    assert fatal


def test_application_settings_go_before_the_file() -> None:
    """A value overridden for one environment is the one that is checked, whatever the case of its name."""
    name = "AzureFunctionsJobHost__extensions__ServiceBus__prefetchCount"
    [(text, _)] = look(json.dumps(SHIPPED), **{name: "10"})
    assert "prefetchCount=10" in text
    name = "AZUREFUNCTIONSJOBHOST__extensions__serviceBus__autoCompleteMessages"
    assert look(changed(f"{BUS}.autoCompleteMessages", value=False), **{name: "true"}) == []


def test_an_app_without_handlers_may_have_any_figures() -> None:
    """Without handlers only the encoding counts, which the internal queue needs too."""
    assert check_host_json('{"version": "2.0"}', {}, [], [], "storage") == []
    assert len(check_host_json(changed(f"{QUEUES}.messageEncoding", "none"), {}, [], [], "storage")) == 1


def test_a_jobs_limit_and_the_number_of_jobs_are_looked_at_too() -> None:
    """A job without a limit is told of; so is a queue that a few long runs keep from being read."""
    [found] = check_host_json(json.dumps(SHIPPED), {}, [job(max_runtime=None)], [], "storage")
    assert found.text.startswith("Job 'nightly': no max_runtime, and host.json functionTimeout=00:35:00 ends")
    jobs = [job(f"job-{n}", max_runtime=60) for n in range(33)]
    [found] = check_host_json(json.dumps(SHIPPED), {}, jobs, [], "storage")
    assert "newBatchThreshold=32: what the 33 scheduled jobs" in found.text
    assert "set 33 or more" in found.text
    [found] = check_host_json('{"version": "2.0"}', {}, jobs[:9], [], "storage")
    assert "newBatchThreshold=8" in found.text  # half of 16, the host's own default


@pytest.mark.parametrize(
    ("timeout", "seconds"), [("00:35:00", 2040), ("00:00:30", 27), ("-1", float("inf")), (None, 1740)]
)
def test_a_run_ends_a_margin_before_the_host_ends_the_worker(timeout: str | None, seconds: float) -> None:
    """A minute before functionTimeout, or a tenth of it where that is less."""
    assert longest_run(changed("functionTimeout", timeout), {}) == seconds
    assert longest_run("{", {}) == 1740


def test_a_timeout_without_end_fits_everything() -> None:
    """functionTimeout "-1" ends nothing; a handler without a limit may then outlast its lock, which is told."""
    assert look(changed("functionTimeout", "-1"), take(max_runtime=1800)) == []
    [(text, _)] = look(changed("functionTimeout", "-1"), take(max_runtime=None))
    assert "give it a max_runtime" in text


@pytest.mark.parametrize(
    "text",
    [
        '{"functionTimeout": "00:10:00", // ten minutes\n "extensions": {}}',
        '/* ours: "00:30:00" */ {"functionTimeout": "00:10:00",}',
        "{'functionTimeout': '00:10:00'}",
        '{functionTimeout: "00:10:00", "watchDirectories": ["Shared", /* last */ ], }',
        '\ufeff{"functionTimeout": "00:10:00"}',
        """{"functionTimeout": "00:10:00", "a": "http://x, }", 'b': 'it\\'s "so" // here'}""",
    ],
)
def test_the_file_is_read_as_the_host_reads_it(text: str) -> None:
    """Comments, trailing commas, single quotes, bare names and a mark at the beginning are no error; values count."""
    found = look(text, take(max_runtime=700, concurrency=16))
    assert not [said for said, _ in found if "JSON" in said]
    assert any("functionTimeout=00:10:00" in said for said, _ in found)


def test_what_the_host_cannot_read_either_is_said_with_its_line() -> None:
    """The place is the file's own, whatever comments stand before it."""
    (found,) = look('{ // a comment\n /* and\n another */ "functionTimeout" "00:10:00"}')
    assert found[1]
    assert "line 3 column" in found[0]


def test_no_limit_may_be_a_number() -> None:
    """The host takes -1 as it takes "-1"."""
    for value in ("-1", -1):
        assert not [text for text, _ in look(changed("functionTimeout", value)) if "functionTimeout=" in text]
