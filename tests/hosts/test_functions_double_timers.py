"""Timers as the Functions host ticks them: its lock, its stored state, its time zone, its switch."""

import datetime as dt
import json
import time
import uuid
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from azure.storage.blob import BlobLeaseClient, ContainerClient

from tests.support.functions_worker import LiveHost, Times
from tests.support.functions_worker.project import Project
from tests.support.functions_worker.samples import until, write_app
from tests.support.functions_worker.timer_listener import CONTAINER, Schedule

APP = """
    @app.timer_trigger(arg_name="tick", schedule="* * * * * *")
    def often(tick: func.TimerRequest) -> None:
        log.info("often %s %s", tick.past_due, bool(tick.schedule_status))

    @app.function_name("each-hour")
    @app.timer_trigger(arg_name="tick", schedule="0 0 * * * *")
    def hourly(tick: func.TimerRequest) -> None:
        log.info("hourly %s %s", tick.past_due, sorted(tick.schedule_status))
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return write_app(tmp_path / "app", APP)


@pytest.fixture
def host_id() -> str:
    return f"host-{uuid.uuid4().hex[:8]}"


def host(
    app: Path, storage: str, host_id: str, env: dict[str, str] | None = None, **times: float
) -> LiveHost:
    settings = {"AzureWebJobsStorage": storage, "AzureFunctionsWebHost__hostid": host_id, **(env or {})}
    return LiveHost(app, settings, times=Times(**times))


def state(storage: str, host_id: str) -> Any:
    container = ContainerClient.from_connection_string(storage, CONTAINER)
    return container.get_blob_client(f"timers/{host_id}/Functions.each-hour/status")


def store(storage: str, host_id: str, last: dt.datetime) -> None:
    """A state as the host leaves it behind after a tick."""
    container = ContainerClient.from_connection_string(storage, CONTAINER)
    if not container.exists():
        container.create_container()
    upcoming = Schedule("0 0 * * * *", ZoneInfo("UTC")).after(last)
    status = {"Last": last.isoformat(), "Next": upcoming.isoformat(), "LastUpdated": last.isoformat()}
    state(storage, host_id).upload_blob(json.dumps(status))


def test_a_timer_ticks_on_time(app: Path, azurite: str, host_id: str) -> None:
    """Each second has one tick, within a fraction of it; so frequent a timer has no stored state."""
    with host(app, azurite, host_id) as running:
        running.console.wait_for("often False False", count=3)
        ticks = [tick.started for tick in running.console.of("often")]
        assert all(tick % 1 < 0.5 for tick in ticks)
        assert len({int(tick) for tick in ticks}) == len(ticks)
        names = ContainerClient.from_connection_string(azurite, CONTAINER).list_blob_names()
        assert [name for name in names if name.startswith(f"timers/{host_id}/")] == [
            f"timers/{host_id}/Functions.each-hour/status"
        ]


def test_a_past_due_timer_ticks_at_once(app: Path, azurite: str, host_id: str) -> None:
    """A host that finds by the stored state that an occurrence has passed ticks at once and says so."""
    store(azurite, host_id, dt.datetime.now(dt.UTC) - dt.timedelta(hours=3))
    with host(app, azurite, host_id) as running:
        running.console.wait_for("hourly True ['Last', 'LastUpdated', 'Next']", timeout=5)
        moved = until(lambda: _later(json.loads(state(azurite, host_id).download_blob().readall())))
        assert dt.datetime.fromisoformat(moved["Next"]) > dt.datetime.now(dt.UTC)


def _later(status: dict[str, str]) -> dict[str, str] | None:
    ago = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(status["Last"])
    return status if ago < dt.timedelta(minutes=1) else None


def test_a_state_in_the_future_keeps_a_timer_from_ticking(app: Path, azurite: str, host_id: str) -> None:
    """A timer whose state lies ahead waits for the occurrence the state names."""
    ahead = dt.datetime.now(dt.UTC) + dt.timedelta(days=2)
    store(azurite, host_id, ahead)
    with host(app, azurite, host_id) as running:
        running.console.wait_for("often")
        listener = next(timer for timer in running._script._timers if timer._function.name == "each-hour")
        assert listener._first() == (Schedule("0 0 * * * *", ZoneInfo("UTC")).after(ahead), False)
        assert not running.console.of("each-hour")


def test_hosts_of_one_id_share_one_timer(app: Path, azurite: str, host_id: str) -> None:
    """Of two hosts with one id one ticks; when it stops, the other takes the lock at its next look."""
    with host(app, azurite, host_id) as first:
        first.console.wait_for("often False", count=2)
        with host(app, azurite, host_id, lock_recovery=0.5) as second:
            first.console.wait_for("often False", count=4)
            assert not second.console.of("often")
            first.terminate()
            assert first.wait(10) == 0
            second.console.wait_for("often False", timeout=5)


def test_hosts_of_several_ids_each_tick(app: Path, azurite: str, host_id: str) -> None:
    """Two hosts with different ids do not know of each other."""
    with host(app, azurite, host_id) as first, host(app, azurite, f"{host_id}-b") as second:
        first.console.wait_for("often False", count=2)
        second.console.wait_for("often False", count=2)


@pytest.mark.slow
def test_a_lock_is_kept_while_a_host_lives(app: Path, azurite: str, host_id: str) -> None:
    """The lease of a timer's lock is renewed: it is held after longer than the 15 s it lasts."""
    with host(app, azurite, host_id, lock_renewal=3) as running:
        running.console.wait_for("often")
        blob = ContainerClient.from_connection_string(azurite, CONTAINER).get_blob_client(
            f"locks/{host_id}/Functions.often.Listener"
        )
        time.sleep(16)
        with pytest.raises(Exception, match="LeaseAlreadyPresent"):
            BlobLeaseClient(blob).acquire(15)


@pytest.mark.parametrize(
    ("env", "upcoming"),
    [
        ({}, "2026-11-30T03:00:00+00:00"),
        ({"TZ": "Asia/Tokyo"}, "2026-11-30T18:00:00+00:00"),
        ({"WEBSITE_TIME_ZONE": "Asia/Tokyo"}, "2026-11-30T03:00:00+00:00"),
    ],
)
def test_tz_moves_timers(
    app: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], upcoming: str
) -> None:
    """Timers are in UTC, or in the zone TZ names; WEBSITE_TIME_ZONE alone does nothing."""
    monkeypatch.delenv("TZ", raising=False)
    schedule = Schedule("0 0 3 * * *", Project.read(app, env).zone)
    midnight = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
    assert schedule.after(midnight) == dt.datetime.fromisoformat(upcoming)


def test_a_disabled_function_is_not_run(app: Path, azurite: str, host_id: str) -> None:
    """`AzureWebJobs.NAME.Disabled` switches a function off, one with a hyphen in its name too."""
    store(azurite, host_id, dt.datetime.now(dt.UTC) - dt.timedelta(hours=3))
    env = {"AzureWebJobs.each-hour.Disabled": "true", "azurewebjobs.often.disabled": "true"}
    with host(app, azurite, host_id, env) as running:
        running.console.wait_for("often False", count=2)  # its setting is written in another case
        assert "Function 'each-hour' is disabled." in running.console.lines
        assert not running.console.of("each-hour")


def test_only_the_named_functions_run(app: Path, azurite: str, host_id: str) -> None:
    """A list of functions, as `func start --functions` sets it, leaves out all others."""
    store(azurite, host_id, dt.datetime.now(dt.UTC) - dt.timedelta(hours=3))
    with host(app, azurite, host_id, {"AzureFunctionsJobHost__functions__0": "each-hour"}) as running:
        running.console.wait_for("hourly True")
        assert not running.console.of("often")
