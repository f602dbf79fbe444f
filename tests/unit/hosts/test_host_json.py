from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from support.functions_app import ROOT

from runonce.errors import SettingsError
from runonce.hosts.discover import discover
from runonce.hosts.functions import build
from runonce.hosts.functions.host_json import check_host_json
from runonce.messages.definition import handler

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.messages.definition import Handler
    from runonce.settings import TransportName


def take(**options: Any) -> Handler:
    def body(message: Any) -> None:
        """Do nothing."""

    return handler(queue="invoices", key="id", name="take", **options)(body)


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
    found = check_host_json(text, environ, handlers or [take()], transport)
    return [(finding.text, finding.fatal) for finding in found]


@pytest.mark.parametrize("transport", ["servicebus", "storage"])
def test_the_shipped_file_fits_the_shipped_handlers(transport: TransportName) -> None:
    """What is in the repository has nothing to be said about, on either transport."""
    shipped = discover(ROOT / "jobs").handlers.values()
    assert look(json.dumps(SHIPPED), *shipped, transport=transport) == []


BUS, QUEUES = "extensions.serviceBus", "extensions.queues"


@pytest.mark.parametrize(
    ("transport", "path", "value", "options", "said", "fatal"),
    [
        ("storage", f"{QUEUES}.messageEncoding", "none", {}, 'messageEncoding="none": the toolkit writes Base64', True),
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
        ("servicebus", f"{BUS}.maxConcurrentCalls", 16, {}, "concurrency=8, and host.json", False),
        ("servicebus", f"{BUS}.maxConcurrentCalls", None, {"concurrency": 2}, "run 16 of its", False),
        ("storage", f"{QUEUES}.batchSize", 16, {}, "newBatchThreshold=2 let an instance run 18", False),
        ("storage", f"{QUEUES}.batchSize", 4, {"concurrency": 3}, "set 2 and 1, or protect", False),
        ("storage", f"{QUEUES}.visibilityTimeout", None, {}, "visibilityTimeout=00:00:00: a message whose", False),
        ("storage", f"{QUEUES}.maxDequeueCount", 1, {}, "when its host died 1 time; set 5", False),
        ("servicebus", "functionTimeout", "00:04:00", {"max_runtime": 240}, "max_runtime=240 s is not below", False),
        ("servicebus", "functionTimeout", "00:30:00", {"max_runtime": None}, "has no max_runtime", False),
        ("servicebus", "functionTimeout", "soon", {}, 'functionTimeout="soon": write hours:minutes:seconds', True),
        ("servicebus", f"{BUS}.prefetchCount", "many", {}, 'prefetchCount="many": write 0 or another one', True),
        ("servicebus", f"{BUS}.maxConcurrentCalls", True, {}, "maxConcurrentCalls=true: write 16", True),
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
    assert check_host_json('{"version": "2.0"}', {}, [], "storage") == []
    assert len(check_host_json(changed(f"{QUEUES}.messageEncoding", "none"), {}, [], "storage")) == 1


def test_a_timeout_without_end_fits_everything() -> None:
    """functionTimeout "-1" ends nothing; a handler without a limit may then outlast its lock, which is told."""
    assert look(changed("functionTimeout", "-1"), take(max_runtime=1800)) == []
    [(text, _)] = look(changed("functionTimeout", "-1"), take(max_runtime=None))
    assert "give it a max_runtime" in text


HANDLER = """
from runonce import Message, handler  # noqa: E402

@handler(queue="invoices", key="id", max_runtime=900)
def take(message: Message) -> None:
    pass
"""


def app(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "jobs").mkdir()
    (folder / "jobs" / "handlers.py").write_text(HANDLER)
    (folder / "host.json").write_text(text)
    monkeypatch.setenv("RUNONCE_STORAGE", "UseDevelopmentStorage=true")
    monkeypatch.setattr("runonce.hosts.functions.app.listen", lambda _: None)
    return folder


def test_the_app_says_so_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning is in the log, and the app starts; with something fatal it does not, and says why."""
    with caplog.at_level(logging.WARNING, "runonce.functions"):
        build(app(tmp_path, changed("functionTimeout", "00:10:00"), monkeypatch))
    assert "Handler 'take': max_runtime=900 s is not below" in caplog.text
    (tmp_path / "host.json").write_text(changed(f"{QUEUES}.messageEncoding", "none"))
    with pytest.raises(SettingsError, match="messageEncoding"):
        build(tmp_path)
    (tmp_path / "host.json").unlink()
    build(tmp_path)
