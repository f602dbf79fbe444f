"""The only orchestrator: what happens when a fire time may be due. Hosts call it and nothing below it.

    tick      which fire time is this? none: no storage call
    begin     lease → claim → run           refused: a Result, and at most one call for a losing replica
    (body)    the job's own code, in the host's thread or on its event loop
    finish    outcome → record → release

`execute` and `execute_async` are those steps around a `def` and an `async def`; they raise nothing into the
host, whatever the body or the storage does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from runonce.errors import (
    AlreadyRecordedError,
    Fenced,
    HostStopping,
    InputError,
    LeaseLost,
    PermanentError,
    RunInterrupted,
    RunonceError,
    StoreError,
    StoreUnavailableError,
    TimeLimitExceeded,
)
from runonce.execution.blobs import Blobs
from runonce.execution.body import brief, ending, to_its_end, told
from runonce.execution.inflight import InFlight
from runonce.execution.lease import Lease
from runonce.execution.log import run_logger
from runonce.execution.registry import Registry
from runonce.execution.stop import StopSignal
from runonce.execution.threads import start_thread
from runonce.runs.claim import Claim, claim
from runonce.runs.plan import By, Refused
from runonce.runs.requests import read_request, send_request
from runonce.runs.rows import Outcome
from runonce.runs.run import Run
from runonce.stores.columns import LONGEST_TEXT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runonce.clock import Clock
    from runonce.runs.definition import ScheduledJob
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores, Value

log = logging.getLogger("runonce.runs.dispatch")

EARLY = timedelta(seconds=1)
"""How early a fire time may be asked for: hosts' clocks differ a little."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a fire time here."""

    job: str
    fire_time: datetime
    outcome: Outcome
    reason: str = ""
    attempt: int = 0
    error: BaseException | None = None
    """What the body raised, where it did."""

    @property
    def ran(self) -> bool:
        """Whether the job's code was started here."""
        return self.attempt > 0


@dataclass(eq=False, slots=True)
class Started:
    """A claimed run between `begin` and `finish`."""

    job: ScheduledJob
    run: Run
    claim: Claim
    lease: Lease
    stop: StopSignal
    ended: threading.Event


class Dispatcher:
    """Runs jobs for one host; safe to call from many threads."""

    def __init__(
        self,
        jobs: Mapping[str, ScheduledJob],
        stores: Stores,
        settings: Settings,
        clock: Clock,
        *,
        host: str,
        stop: StopSignal | None = None,
    ) -> None:
        self.jobs = jobs
        self.stores = stores
        self.settings = settings
        self.clock = clock
        self.stop = stop or StopSignal()
        self.registry = Registry(stores.runs, settings.namespace, clock, host)
        self._inflight: InFlight[Started] = InFlight(clock)

    @property
    def running(self) -> list[Started]:
        """What this host is running now."""
        return self._inflight.items()

    # -- which fire time ------------------------------------------------------------------------------------

    def due(self, job: ScheduledJob) -> datetime | None:
        """The fire time a timer's tick at this instant is for; None, without a storage call, when it is for none."""
        return job.schedule.snap(self.clock.now())

    def tick(self, job: ScheduledJob) -> Result | None:
        """A timer ticked for a job: run the fire time that is due now, if one is."""
        fire_time = self.due(job)
        return None if fire_time is None else self.execute(job, fire_time, by="timer")

    def handle_request(self, body: str) -> Result | None:
        """Run what a message of the internal queue asks for; a malformed or outdated one is logged and dropped."""
        try:
            request = read_request(body)
        except InputError as error:
            log.error("%s", error)  # noqa: TRY400 - the message has the place; a traceback of ours adds none
            return None
        job = self.jobs.get(request.job)
        if job is None:
            log.error(
                "A request asks for job %r, which this host does not have: deploy the file that defines it. The fire "
                "time %s stays due.",
                request.job,
                request.fire_time,
            )
            return None
        if request.fire_time - self.clock.now() > EARLY:
            log.error(
                "A request asks for %s at %s, which is not due yet; dropped.", job.name, request.fire_time
            )
            return None
        return self.execute(job, request.fire_time, by="request")

    # -- the flow -------------------------------------------------------------------------------------------

    def execute(self, job: ScheduledJob, fire_time: datetime, *, by: By, replay: bool = False) -> Result:
        """Run one fire time of a job, whose body may be sync or async, to its end in this thread."""
        if job.is_async:
            return asyncio.run(self.execute_async(job, fire_time, by=by, replay=replay))
        started = self.begin(job, fire_time, by=by, replay=replay)
        if isinstance(started, Result):
            return started
        error: BaseException | None = started.stop.cause  # a host may have been told to stop meanwhile
        try:
            if error is None:
                job.body(started.run)
        except BaseException as raised:  # noqa: BLE001 - SystemExit of a job must not end its host
            error = raised
        return self.finish(started, error)

    async def execute_async(
        self, job: ScheduledJob, fire_time: datetime, *, by: By, replay: bool = False
    ) -> Result:
        """The same on a running event loop: the body as a task of its own, the rest in a thread."""
        beginning = asyncio.to_thread(self.begin, job, fire_time, by=by, replay=replay)
        started, cancelled = await to_its_end(beginning)
        if isinstance(started, Result):
            return started
        if cancelled:
            started.stop.set(HostStopping())
        if started.stop.cause is not None:  # before its body has begun
            return await asyncio.to_thread(self.finish, started, started.stop.cause)
        loop = asyncio.get_running_loop()
        task = loop.create_task(ending(job.body, started.run))

        def cancel(_: RunInterrupted) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the task is over
                loop.call_soon_threadsafe(task.cancel)

        started.stop.listen(cancel)
        # When the host cancels us, the body must hear of it.
        await to_its_end(asyncio.wait([task]), lambda: started.stop.set(HostStopping()))
        error = asyncio.CancelledError() if task.cancelled() else task.result()[1]
        result, _ = await to_its_end(asyncio.to_thread(self.finish, started, error))
        return result

    def begin(
        self, job: ScheduledJob, fire_time: datetime, *, by: By, replay: bool = False
    ) -> Started | Result:
        """Lease, claim, and a run to hand to the body; or why nothing runs here."""
        with self._inflight.beginning():
            if self.stop.cause is not None:
                return Result(job.name, fire_time, Outcome.SKIPPED, "this host is stopping")
            return self._begin(job, fire_time.astimezone(UTC).replace(microsecond=0), by=by, replay=replay)

    def _begin(self, job: ScheduledJob, fire_time: datetime, *, by: By, replay: bool) -> Started | Result:
        try:
            lease = Lease.acquire(
                self.stores.leases, self.registry.lock_name(job.name), self.settings.lease, self.clock
            )
            if lease is None:
                return Result(job.name, fire_time, Outcome.SKIPPED, "held elsewhere")
        except StoreError as error:
            return self._not_reached(job, fire_time, error)
        try:
            claimed = claim(self.registry, job, fire_time, lease, by=by, replay=replay)
        except (StoreError, RunInterrupted) as error:
            lease.release()
            return self._not_reached(job, fire_time, error)
        except BaseException:
            lease.release()
            raise
        if isinstance(claimed, Refused):
            lease.release()
            if (
                claimed.outcome is not Outcome.SKIPPED
            ):  # given up for good without being run: somebody must hear of it
                log.error(
                    "job %s, fire time %s: %s: %s", job.name, fire_time, claimed.outcome, claimed.reason
                )
            return Result(job.name, fire_time, claimed.outcome, claimed.reason)
        return self._start(job, claimed, lease)

    def _not_reached(self, job: ScheduledJob, fire_time: datetime, error: RunonceError) -> Result:
        away = isinstance(error, StoreUnavailableError)
        why = "storage was out of reach, the next recovery tick tries again" if away else "it was not begun"
        reason = f"{why}: {error}"
        log.warning("job %s, fire time %s: %s", job.name, fire_time, reason)
        return Result(job.name, fire_time, Outcome.SKIPPED, reason, error=error)

    def _start(self, job: ScheduledJob, claimed: Claim, lease: Lease) -> Started:
        stop = StopSignal(self.stop)
        now = self.clock.elapsed()
        limit = float("inf") if job.max_runtime is None else job.max_runtime
        lease.renew_until(now + limit + self.settings.shutdown_timeout)
        lease.keep(stop.set)
        blobs = Blobs(self.stores.blobs, self.settings.namespace, job.name, claimed.run.token, lease.check)
        run = Run(
            registry=self.registry,
            claim=claimed,
            lease=lease,
            stop=stop,
            blobs=blobs,
            log=run_logger(job.name, f"{claimed.run.fire_time:%Y-%m-%dT%H:%M:%SZ}", claimed.run.attempt),
            deadline=now + limit,
        )
        started = Started(job, run, claimed, lease, stop, threading.Event())
        self._inflight.add(started)
        if (
            not lease.held
        ):  # paused since it claimed: somebody may have taken over, so the body does not begin
            stop.set(LeaseLost(f"Job {job.name}: its lease ran out before the run began."))
        if job.max_runtime is not None:
            start_thread(lambda: self._watch(started, job.max_runtime or 0.0), f"runonce-limit-{job.name}")
        run.log.info(
            "started (token %d, by %s, on %s)", claimed.run.token, claimed.run.by, self.registry.host
        )
        return started

    def _watch(self, started: Started, limit: float) -> None:
        if not self.clock.wait(started.ended, limit):
            name = started.job.name
            started.stop.set(TimeLimitExceeded(f"Job {name} ran longer than its max_runtime of {limit:g} s."))

    def finish(self, started: Started, error: BaseException | None) -> Result:
        """Record what came of the body, release the lease, and say it."""
        started.ended.set()
        try:
            result = self._record(started, self._judge(started, error))
        finally:
            started.stop.detach()
            started.lease.release()
            self._hand_on(started)
            self._inflight.remove(started)
        self._say(started, result)
        return result

    def _hand_on(self, started: Started) -> None:
        """Ask for the job's next unfinished fire time at once, now that its lease is free.

        Mostly there is none and no call is made. This is how a stopped run goes on elsewhere within a second,
        and how fire times that were missed follow each other without waiting for a recovery tick each.
        """
        fire_time = started.claim.next_due()
        if fire_time is None:
            return
        try:
            send_request(self.stores.requests, started.job.name, fire_time, "next")
        except StoreError as error:
            log.warning("job %s: the next recovery tick asks for %s: %s", started.job.name, fire_time, error)

    def _judge(self, started: Started, error: BaseException | None) -> Result:
        """The outcome of what the body did."""
        job, row = started.job, started.claim.run

        def result(outcome: Outcome, reason: str = "") -> Result:
            return Result(job.name, row.fire_time, outcome, reason, row.attempt, error)

        if isinstance(error, asyncio.CancelledError):
            # Without a cause of ours the body was cancelled by something of its own, and has failed.
            error = started.stop.cause or error
        if error is None:
            return result(Outcome.SUCCEEDED)
        if isinstance(error, LeaseLost | Fenced):
            return result(Outcome.ABANDONED, str(error))
        if isinstance(error, HostStopping | KeyboardInterrupt):
            return result(
                Outcome.STOPPED, f"{self.registry.host} was stopping; goes on from its last checkpoint"
            )
        reason = brief(error)
        if isinstance(error, PermanentError) or row.failures >= job.retry.retries:
            return result(Outcome.FAILED, reason)
        return result(Outcome.RETRYING, reason)

    def _record(self, started: Started, result: Result) -> Result:
        if result.outcome is Outcome.ABANDONED:
            return result  # not ours to write any more
        retry_at = None
        if result.outcome is Outcome.RETRYING:
            wait = started.job.retry.wait(started.claim.run.failures + 1)
            retry_at = self.clock.now() + timedelta(seconds=wait)
        error = "" if result.error is None else told(result.error)
        # What no checkpoint took along goes with the outcome, so that a death cannot come between the two.
        succeeded = result.outcome is Outcome.SUCCEEDED

        def finish(entries: Mapping[str, Mapping[str, Value]]) -> None:
            started.claim.finish(
                result.outcome,
                reason=result.reason[:LONGEST_TEXT],
                error=error,
                retry_at=retry_at,
                entries=entries,
            )

        try:
            if succeeded:
                started.run.checkpoint.end(finish)
            else:
                finish({})
        except (LeaseLost, Fenced) as lost:
            return Result(result.job, result.fire_time, Outcome.ABANDONED, str(lost), result.attempt, lost)
        except (AlreadyRecordedError, StoreError) as trouble:
            with_entries = succeeded and not started.run.ledger.is_empty
            if with_entries and not isinstance(trouble, StoreUnavailableError):
                return self._record(started, self._judge(started, trouble))  # the entries were refused
            reason = f"ended as {result.outcome}, which could not be recorded: {trouble}"
            return Result(result.job, result.fire_time, Outcome.UNKNOWN, reason, result.attempt, trouble)
        return result

    def _say(self, started: Started, result: Result) -> None:
        say = started.run.log
        if result.outcome is Outcome.SUCCEEDED:
            say.info("succeeded")
        elif result.outcome is Outcome.STOPPED:
            say.info("stopped: %s", result.reason)
        elif result.outcome is Outcome.RETRYING:
            say.warning("failed and will be tried again: %s", result.reason)
        else:
            say.error("%s: %s", result.outcome, result.reason, exc_info=result.error)

    # -- stopping -------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Tell all runs that the host stops and wait for them, `timeout` seconds in all; False when some go on."""
        self.stop.set(HostStopping())
        return self._inflight.wait(timeout)

    def abandon(self) -> list[str]:
        """Give up runs that did not heed the stop: record them as stopped, release their leases; their jobs.

        To be called only right before the process ends, for their code still runs.
        """
        left = self.running
        for started in left:
            reason = f"it did not stop within {self.settings.shutdown_timeout:g} s on {self.registry.host}"
            row = started.claim.run
            self._record(
                started, Result(started.job.name, row.fire_time, Outcome.STOPPED, reason, row.attempt)
            )
            started.lease.release()
            self._hand_on(started)
        return [started.job.name for started in left]
