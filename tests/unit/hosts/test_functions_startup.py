"""What a Function app says when it is imported: on the standard error, and once in the next recovery tick."""

from __future__ import annotations

import json
import logging
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from runonce.clock import SystemClock
from runonce.errors import SettingsError, StoreUnavailableError
from runonce.hosts.functions import build
from runonce.hosts.functions.startup import left_out, unreachable
from runonce.hosts.runtime import Runtime
from runonce.runs.switched_off import switched_off
from runonce.settings import Settings
from runonce.stores.memory import memory_stores
from tests.support.functions_app import ROOT
from tests.support.functions_worker.samples import until

if TYPE_CHECKING:
    from pathlib import Path

JOBS = """
from runonce import Message, Run, handler, scheduled

@scheduled("0 0 3 * * *", max_runtime=900)
def nightly(run: Run) -> None:
    pass

@scheduled("0 0 4 * * *", name="the-other", max_runtime=None)
def other(run: Run) -> None:
    pass

@handler(queue="invoices", key="id")
def take(message: Message) -> None:
    pass
"""
WRONG = (
    JOBS
    + """
@handler(queue="Not_A_Queue")
def wrong(message: Message) -> None:
    pass
"""
)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNONCE_STORAGE", "UseDevelopmentStorage=true")
    monkeypatch.setattr("runonce.hosts.functions.app._stop_when_told", lambda *_: None)
    monkeypatch.setattr("runonce.hosts.functions.app.InHand.run", lambda _: None)
    monkeypatch.setattr("runonce.hosts.functions.startup._answers", lambda *_: True)
    stores = memory_stores(SystemClock())
    monkeypatch.setattr("runonce.stores.azure.stores.azure_stores", lambda *_, **__: stores)


def app(folder: Path, jobs: str = JOBS, **changes: Any) -> Path:
    (folder / "jobs").mkdir(exist_ok=True)
    (folder / "jobs" / "all.py").write_text(jobs)
    content = json.loads((ROOT / "host.json").read_text())
    (folder / "host.json").write_text(json.dumps(content | changes))
    return folder


def functions(folder: Path) -> dict[str, Any]:
    """The functions by name, as the worker is told of them."""
    return {one.get_function_name(): one for one in build(folder).get_functions()}


def test_what_does_not_fit_is_told_at_once_and_once_by_recovery(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A finding is on the standard error, and a warning of the first recovery tick but of no other."""
    monkeypatch.setattr("runonce.hosts.functions.app.recover", lambda _: [])
    made = functions(app(tmp_path, functionTimeout="00:10:00"))
    told = "Job 'nightly': max_runtime=900 s, and host.json functionTimeout=00:10:00"
    assert f"runonce: {told}" in capsys.readouterr().err
    for expected in (1, 0):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            made["runonce_recovery"].get_user_function()(None)
        assert caplog.text.count(told) == expected


def test_a_leader_is_for_local_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RUNONCE_LEADER=on changes nothing here, and the app says so."""
    monkeypatch.setenv("RUNONCE_LEADER", "on")
    functions(app(tmp_path))
    assert "RUNONCE_LEADER=on changes nothing on Functions" in capsys.readouterr().err


def test_limits_are_put_below_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a job says, or leaves out, it is told to end a minute before the host ends the worker."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        "runonce.hosts.functions.app._timer", lambda _, job: seen.setdefault(job.name, job) and print
    )
    functions(app(tmp_path, functionTimeout="00:10:00"))
    assert {name: job.max_runtime for name, job in seen.items() if name != "runonce_purge"} == {
        "nightly": 540,
        "the-other": 540,
    }


@pytest.mark.parametrize(("lock_wait", "left"), [(40, (40, 500)), (900, (270, 270))])
def test_waiting_for_a_lock_ends_before_the_host_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock_wait: int, left: tuple[float, float]
) -> None:
    """What a handler may take on Functions leaves room for the wait for its lock, which comes first."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        "runonce.hosts.functions.app.add_handler",
        lambda _app, _runtime, one, *_, **__: seen.update({one.name: one}),
    )
    options = f'key="id", lock="invoices", lock_wait={lock_wait}, max_runtime=600'
    functions(app(tmp_path, JOBS.replace('key="id"', options), functionTimeout="00:10:00"))
    assert (seen["take"].lock_wait, seen["take"].max_runtime) == left


def test_a_handler_that_cannot_be_bound_takes_no_other_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A queue name Azure does not allow is a broken file: told at once with its file, and everything else works."""
    made = functions(app(tmp_path, WRONG))
    assert "wrong" not in made
    assert {"nightly", "the-other", "take", "runonce_recovery", "runonce_requests"} <= set(made)
    told = capsys.readouterr().err
    assert "runonce: all.py: Handler 'wrong': 'Not_A_Queue' is not a Storage queue's name" in told


def test_a_file_that_fails_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job file's error is on the standard error while the app starts."""
    folder = app(tmp_path)
    (folder / "jobs" / "broken.py").write_text("import no_such_module\n")
    functions(folder)
    assert "no_such_module" in capsys.readouterr().err


def test_what_no_message_could_be_handled_with_stops_the_app(tmp_path: Path) -> None:
    """An encoding that the toolkit does not write is an error with the value; without host.json nothing is said."""
    folder = app(tmp_path, extensions={"queues": {"messageEncoding": "none"}})
    with pytest.raises(SettingsError, match="messageEncoding"):
        build(folder)
    (folder / "host.json").unlink()
    build(folder)


@pytest.mark.parametrize(
    "zone", ["Europe/Istanbul", ":America/New_York", "EST5EDT", "/usr/share/zoneinfo/Asia/Tokyo"]
)
def test_a_zone_that_moves_timers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """TZ moves every timer of the host away from what jobs mean, so the app does not start; the remedy is named."""
    monkeypatch.setenv("TZ", zone)
    with pytest.raises(SettingsError, match=r"TZ=.* moves every timer .* time_zone="):
        build(app(tmp_path))


def test_the_plans_own_zone_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """WEBSITE_TIME_ZONE moves timers on some plans and does nothing on others, so the app starts and says so."""
    monkeypatch.setenv("WEBSITE_TIME_ZONE", "Europe/Istanbul")
    build(app(tmp_path))
    assert "WEBSITE_TIME_ZONE='Europe/Istanbul' moves every timer" in capsys.readouterr().err


@pytest.mark.parametrize("zone", ["", "UTC", "Etc/UTC", ":Etc/UTC", "UTC0", "GMT", "utc"])
def test_utc_is_no_other_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """Every way to say UTC is taken."""
    monkeypatch.setenv("TZ", zone)
    build(app(tmp_path))


@pytest.mark.parametrize(
    ("setting", "value", "off"),
    [
        ("AzureWebJobs.the-other.Disabled", "true", True),
        ("AzureWebJobs_the-other_Disabled", "True", True),
        ("AZUREWEBJOBS.THE-OTHER.DISABLED", "1", True),
        ("AzureWebJobs.the-other.Disabled", "false", False),
        ("AzureWebJobs.the-other.Disabled", "0", False),
        ("AzureWebJobs.the-other.Disabled", "", False),
        ("AzureWebJobs.the_other.Disabled", "true", False),
    ],
)
def test_every_spelling_that_switches_a_function_off(setting: str, value: str, off: bool) -> None:
    """As the host reads it: dots or underscores around the name, in any case, true or a number."""
    assert left_out({setting: value}, ["nightly", "the-other"]) == ({"the-other": setting} if off else {})


def test_a_list_of_functions_leaves_the_others_out() -> None:
    """`func start --functions` starts only those, and sets them one by one."""
    only = {"AzureFunctionsJobHost__functions__0": "nightly", "AzureFunctionsJobHost__functions__1": "take"}
    assert left_out(only, ["nightly", "take", "runonce_recovery"]) == {"runonce_recovery": "--functions"}


def test_recovery_leaves_alone_what_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that is switched off keeps its function, is told of, and is none that recovery runs."""
    looked: list[set[str]] = []
    monkeypatch.setattr(
        "runonce.hosts.functions.app.recover", lambda dispatcher: looked.append(set(dispatcher.jobs))
    )
    monkeypatch.setenv("AzureWebJobs.nightly.Disabled", "true")
    monkeypatch.setenv("AzureWebJobs_runonce_requests_Disabled", "1")
    made = functions(app(tmp_path))
    made["runonce_recovery"].get_user_function()(None)
    assert "nightly" in made
    assert looked == [{"the-other", "runonce_purge"}]
    told = capsys.readouterr().err
    assert "Function 'nightly' is switched off (AzureWebJobs.nightly.Disabled)" in told
    assert "Function 'runonce_requests' is switched off" in told


@pytest.mark.parametrize("off", [False, True])
def test_switching_a_handler_off_stops_what_comes_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: bool
) -> None:
    """Without forwarding a handler has two functions, and the host is told to leave out the first alone."""
    monkeypatch.setenv(
        "RUNONCE_SERVICEBUS", "Endpoint=sb://127.0.0.1;SharedAccessKeyName=a;SharedAccessKey=b"
    )
    if off:
        monkeypatch.setenv("AzureWebJobs.take.Disabled", "true")
    direct = 'topic="orders", subscription="post", forward=False'
    made = functions(app(tmp_path, JOBS.replace('queue="invoices"', direct)))
    assert ({"take", "take_retry"} & set(made)) == ({"take"} if off else {"take", "take_retry"})


@pytest.mark.parametrize("recovery", ["", "true"])
def test_what_is_switched_off_is_seen_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recovery: str
) -> None:
    """The first recovery tick writes it down, or the start where nobody ticks; with nothing off it is taken away."""
    monkeypatch.setenv("AzureWebJobs.take.Disabled", "true")
    monkeypatch.setenv("AzureWebJobs.runonce_recovery.Disabled", recovery)
    monkeypatch.setenv("WEBSITE_HOSTNAME", "shop.azurewebsites.net")
    elsewhere = Runtime(Settings.from_env(folder=tmp_path)).runs
    made = functions(app(tmp_path))
    if not recovery:
        made["runonce_recovery"].get_user_function()(None)
    names = ["runonce_recovery", "take"] if recovery else ["take"]
    until(lambda: [one.name for one in switched_off(elsewhere)] == names)
    assert {one.app for one in switched_off(elsewhere)} == {"shop.azurewebsites.net"}
    monkeypatch.delenv("AzureWebJobs.take.Disabled")
    monkeypatch.delenv("AzureWebJobs.runonce_recovery.Disabled")
    functions(tmp_path)["runonce_recovery"].get_user_function()(None)
    assert switched_off(elsewhere) == []


def test_storage_that_is_away_keeps_no_tick_from_what_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That it could not be written down is a warning, and the recovery tick goes on."""

    def away(*_: object) -> None:
        raise StoreUnavailableError

    monkeypatch.setattr("runonce.stores.memory.MemoryTable.get", away)
    monkeypatch.setattr("runonce.hosts.functions.app.recover", lambda _: [])
    functions(app(tmp_path))["runonce_recovery"].get_user_function()(None)
    assert "is not shown by `runonce status` elsewhere" in caplog.text


def test_a_stand_in_that_is_not_there_is_told_with_how_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator or a broker on this machine that takes no connection is named; one that does, is not."""
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        key = "AccountName=a;AccountKey=aGk="
        urls = ";".join(f"{name}Endpoint=http://127.0.0.1:{port}/a" for name in ("Blob", "Queue", "Table"))
        storage = {"AzureWebJobsStorage": f"{key};{urls}"}
        broker = (
            "Endpoint=sb://127.0.0.1:{};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        )
        assert (
            list(unreachable(Settings.from_env({**storage, "RUNONCE_SERVICEBUS": broker.format(port)}))) == []
        )
    [said] = unreachable(Settings.from_env(storage))
    assert said.startswith(f"Storage does not answer at http://127.0.0.1:{port} (AzureWebJobsStorage): start")
    _, said = unreachable(Settings.from_env({**storage, "RUNONCE_SERVICEBUS": broker.format(port)}))
    assert said.startswith(
        f"Service Bus does not answer at sb://127.0.0.1:{port} (RUNONCE_SERVICEBUS): start"
    )
    far = {"RUNONCE_STORAGE__accountName": "shop", "RUNONCE_NAMESPACE": "shop"}
    assert list(unreachable(Settings.from_env(far))) == []  # nothing is asked that is not on this machine


def test_the_portals_run_says_why_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tick with nothing due says so in one line, with the next fire time and how to run the job by hand."""
    monkeypatch.setattr("runonce.clock.SystemClock.now", lambda _: datetime(2026, 11, 30, 14, tzinfo=UTC))
    made = functions(app(tmp_path))
    with caplog.at_level(logging.INFO, "runonce.functions"):
        made["nightly"].get_user_function()(None)
    [line] = [record.getMessage() for record in caplog.records if record.name == "runonce.functions"]
    assert "job nightly: nothing is due, next at" in line
    assert "T03:00:00" in line
    assert "`runonce run nightly`" in line


def test_a_tick_that_came_too_late_names_its_fire_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that waited for minutes says for which fire time it was too late, and who looks after that."""
    monkeypatch.setattr(
        "runonce.clock.SystemClock.now", lambda _: datetime(2026, 11, 30, 3, 6, 40, tzinfo=UTC)
    )
    made = functions(app(tmp_path))
    with caplog.at_level(logging.INFO, "runonce.functions"):
        made["nightly"].get_user_function()(None)
    assert (
        "(2026-11-30T03:00:00Z is 400 s ago, and left to recovery), next at 2026-12-01T03:00:00Z"
        in caplog.text
    )


@pytest.mark.parametrize(("threads", "told"), [("1000", False), ("3", False), ("2", True), ("", False)])
def test_fewer_threads_than_work_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    threads: str,
    told: bool,
) -> None:
    """Three jobs, one of them ours, want three threads; a handler's messages have threads of their own."""
    monkeypatch.setenv("PYTHON_THREADPOOL_THREAD_COUNT", threads)
    functions(app(tmp_path))
    assert (f"PYTHON_THREADPOOL_THREAD_COUNT={threads}: each run" in capsys.readouterr().err) == told


def test_recovery_ticks_in_a_quiet_second(tmp_path: Path) -> None:
    """Not when most jobs fire: at no round second of the minute."""
    [trigger] = functions(app(tmp_path))["runonce_recovery"].get_bindings()
    second, *rest = trigger.get_dict_repr()["schedule"].split()
    assert rest == ["*"] * 5
    assert int(second) % 5 != 0
