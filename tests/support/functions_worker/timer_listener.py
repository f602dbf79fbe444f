"""A timer's trigger: one instance of a host id ticks, by a lock in the host's storage, which also holds its state."""

import contextlib
import datetime as dt
import itertools
import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.storage.blob import BlobClient, BlobLeaseClient, ContainerClient
from croniter import croniter

from . import triggers
from .storage import CLIENT, StorageAwayError, StorageWatch, kept
from .times import Times
from .workers import HostEndedError

if TYPE_CHECKING:
    from .metadata import Function
    from .queue_listener import Run

CONTAINER = "azure-webjobs-hosts"
_MONITORED = dt.timedelta(minutes=1)
"""Timers that tick more often have no stored state."""


class Schedule:
    """A timer's schedule in the host's time zone."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        self._expression, self._zone = expression, zone

    def after(self, moment: dt.datetime) -> dt.datetime:
        """The first occurrence after a moment."""
        start = moment.astimezone(self._zone)
        found: dt.datetime = croniter(
            self._expression, start, ret_type=dt.datetime, second_at_beginning=True, day_or=False
        ).get_next()
        return found

    def is_monitored(self, now: dt.datetime) -> bool:
        """Whether no two of the next occurrences are less than a minute apart."""
        moments = [self.after(now)]
        for _ in range(10):
            moments.append(self.after(moments[-1]))
        return all(later - earlier >= _MONITORED for earlier, later in itertools.pairwise(moments))


class TimerListener:
    """Ticks while it has the lock; looks for the lock at long intervals while it has not."""

    def __init__(
        self,
        function: "Function",
        connection: str,
        host_id: str,
        zone: ZoneInfo,
        times: Times,
        watch: StorageWatch,
        run: "Run",
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._function, self._times, self._watch, self._run, self._now = function, times, watch, run, now
        self._schedule = Schedule(function.trigger["schedule"], zone)
        self._monitored = bool(function.trigger.get("useMonitor", True)) and self._schedule.is_monitored(
            now()
        )
        self._container = ContainerClient.from_connection_string(connection, CONTAINER, **CLIENT)
        self._lock = self._container.get_blob_client(f"locks/{host_id}/Functions.{function.name}.Listener")
        self._state = self._container.get_blob_client(f"timers/{host_id}/Functions.{function.name}/status")
        self._stopped, self._lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._listen, name=f"timer-{function.name}", daemon=True)

    def start(self) -> None:
        """Begin to look for the lock."""
        self._thread.start()

    def stop(self) -> None:
        """Tick no more, and give the lock back."""
        self._stopped.set()
        self._lost.set()
        self._thread.join(timeout=1)  # longer only while storage does not answer

    def _listen(self) -> None:
        while not self._stopped.is_set():
            try:
                lease = self._watch.attempt(self._acquire)
                if lease is not None:
                    self._hold(lease)
            except HostEndedError:
                return
            except (StorageAwayError, HttpResponseError):
                self._stopped.wait(1)
                continue
            self._stopped.wait(self._times.lock_recovery)

    def _hold(self, lease: BlobLeaseClient) -> None:
        self._lost.clear()
        if self._stopped.is_set():
            self._lost.set()
        try:
            with kept(self._times.lock_renewal, lambda: self._renew(lease)):
                self._tick_while_held()
        finally:
            if self._stopped.is_set():
                self._watch.attempt(lease.release)

    def _tick_while_held(self) -> None:
        upcoming, past_due = self._first()
        while True:
            wait = (upcoming - self._now()).total_seconds()
            if not past_due and wait > 0:
                if self._lost.wait(wait):
                    return
                continue
            if self._lost.is_set():
                return
            self._tick(past_due=past_due)
            upcoming, past_due = self._schedule.after(self._now()), False

    def _tick(self, *, past_due: bool) -> None:
        began = self._now()
        status = {name: _read_time(text) for name, text in self._read().items()} if self._monitored else {}
        trigger = triggers.timer(
            past_due=past_due,
            last=_text(status.get("Last") or began),
            upcoming=_text(status.get("Next") or began),
            monitored=self._monitored,
        )
        self._run(self._function, trigger, "Timer fired" + (" (past due)" if past_due else ""))
        self._write(last=began, upcoming=self._schedule.after(began))

    def _first(self) -> tuple[dt.datetime, bool]:
        """The next occurrence by the stored state, and whether it has passed."""
        now = self._now()
        if not self._monitored:
            return self._schedule.after(now), False
        stored = {name: _read_time(text) for name, text in self._read().items()}
        seen = stored.get("Last") or stored.get("LastUpdated")
        if seen is None:
            upcoming = self._schedule.after(now)
            self._write(last=None, upcoming=upcoming)
            return upcoming, False
        expected = self._schedule.after(seen)
        if expected != stored.get("Next"):  # the schedule was changed meanwhile
            expected = max(expected, self._schedule.after(now)) if expected < now else expected
            self._write(last=None, upcoming=expected)
        return expected, expected < now

    def _acquire(self) -> BlobLeaseClient | None:
        lease = BlobLeaseClient(self._lock)
        try:
            try:
                lease.acquire(lease_duration=self._times.lock)
            except ResourceNotFoundError:
                _create(self._container, self._lock)
                lease.acquire(lease_duration=self._times.lock)
        except ResourceExistsError:  # another instance has it
            return None
        return lease

    def _renew(self, lease: BlobLeaseClient) -> None:
        try:
            self._watch.attempt(lease.renew)
        except StorageAwayError:
            pass  # it is still this instance's for a while
        except HttpResponseError:
            self._lost.set()

    def _read(self) -> dict[str, Any]:
        try:
            status: dict[str, Any] = json.loads(
                self._watch.attempt(lambda: self._state.download_blob().readall())
            )
        except ResourceNotFoundError:
            return {}
        return status

    def _write(self, *, last: dt.datetime | None, upcoming: dt.datetime) -> None:
        if self._monitored:
            moments = {"Last": last, "Next": upcoming, "LastUpdated": self._now()}
            status = json.dumps({name: moment and _text(moment) for name, moment in moments.items()})
            self._watch.attempt(lambda: self._state.upload_blob(status, overwrite=True))


def _create(container: ContainerClient, blob: BlobClient) -> None:
    with contextlib.suppress(ResourceExistsError):
        container.create_container()
    with contextlib.suppress(ResourceExistsError):
        blob.upload_blob(b"", overwrite=False)


def _text(moment: dt.datetime) -> str:
    return moment.isoformat()


def _read_time(text: str | None) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None
