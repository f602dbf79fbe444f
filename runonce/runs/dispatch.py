"""The only orchestrator: what happens when a fire time may be due. Hosts call it and nothing below it.

    tick      which fire time is this? none: no storage call
    begin     lease → claim → run           refused: a Result, and at most one call for a losing replica
    (body)    the job's own code, in the host's thread or on its event loop
    finish    outcome → record → release

`execute` and `execute_async` are those steps around the body; they raise nothing into the host, whatever the body
or the storage does.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from runonce.errors import (
    Fenced,
    InputError,
    LeaseLost,
    PermanentError,
    RunInterrupted,
    RunonceError,
    StoreError,
    StoreUnavailableError,
)
from runonce.execution import hooks
from runonce.execution.blobs import Blobs
from runonce.execution.body import Begun, Flow, Steps, brief, told
from runonce.execution.ending import Ending, judge
from runonce.execution.lease import Lease
from runonce.execution.log import run_logger
from runonce.execution.registry import Registry
from runonce.execution.server_clock import CORRECT, ServerClock
from runonce.execution.stop import StopSignal
from runonce.execution.terms import Terms, terms
from runonce.execution.threads import start_thread
from runonce.runs import requests, telling
from runonce.runs.attend import attend, over_its_time
from runonce.runs.claim import Claim, claim
from runonce.runs.follow_ups import send_left
from runonce.runs.plan import By, Refused
from runonce.runs.result import Refusal, Result
from runonce.runs.rows import Outcome
from runonce.runs.run import Run
from runonce.runs.switch import NEARLY, Switch
from runonce.schedules.schedule import EARLIEST
from runonce.stores.columns import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runonce.clock import Clock
    from runonce.execution.events import RunBegun
    from runonce.execution.keeper import Keeper
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.follow_ups import FollowUps
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores, Value

log = logging.getLogger("runonce.runs.dispatch")

OUT_OF_REACH_AGAIN = 60.0
"""Seconds until a run goes on whose calls to storage got no answer for a minute."""
LAST_WORDS = 1.0
"""Seconds for hooks to hear of runs that did not stop."""
NEAR = (EARLIEST + CORRECT).total_seconds()
"""How early a timer's tick may be, by a clock that is ahead too, to wait for its fire time."""
EARLY = timedelta(seconds=1)
"""How early a fire time may be asked for: hosts' clocks differ a little."""


@dataclass(eq=False, slots=True, kw_only=True)
class Started(Begun):
    """A claimed run between `begin` and `finish`."""

    job: ScheduledJob
    run: Run
    claim: Claim
    lease: Lease
    deadline: float
    """The elapsed time at which it must have ended."""
    switch: Switch
    over: threading.Event = field(default_factory=threading.Event)
    told: RunBegun | None = None
    """What hooks were told of it, where anybody listens."""
    began_at: float = 0.0


class Dispatcher(Flow[Started]):
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
        follow_ups: FollowUps | None = None,
        keeper: Callable[[Lease, float | None, float], Keeper | None] | None = None,
    ) -> None:
        self.follow_ups = follow_ups
        self.keeper = keeper
        self.server_clock = ServerClock(clock, host)
        registry = Registry(stores.runs, settings.namespace, self.server_clock, host)
        super().__init__(stores, settings, registry, stop)
        self.jobs = jobs
        self.grace = timedelta(seconds=settings.misfire_grace)
        """How long a fire time may wait for its tick before recovery counts it as missed."""

    # -- which fire time ------------------------------------------------------------------------------------

    def due(self, job: ScheduledJob) -> datetime | None:
        """The fire time a timer's tick at this instant is for; None, without a storage call, when it is for none."""
        return job.schedule.snap(self.clock.now())

    def tick(self, job: ScheduledJob) -> Result | None:
        """A timer ticked for a job: run the fire time that is due now, if one is."""
        fire_time = self.due(job)
        return None if fire_time is None else self.execute(job, fire_time, by="timer")

    def handle_request(self, body: str) -> Result | None:
        """Run what a message of the internal queue asks for, or put it back; a malformed one is logged and dropped."""
        try:
            request = requests.read_request(body)
        except InputError as error:
            log.error("%s", error)  # noqa: TRY400 - the message has the place; a traceback of ours adds none
            return None
        job = self.jobs.get(request.job)
        if job is None:
            requests.put_back_unknown(self.stores.requests, request)
            return None
        if (early := request.fire_time - self.clock.now()) > EARLY:
            requests.put_back_early(self.stores.requests, request, early)
            return None
        result = self.execute(job, request.fire_time, by="request")
        if result.refusal is Refusal.HELD_ELSEWHERE and request.why == "abandoned":
            self.clock.wait(self.stop.event, NEARLY)
            result = self.execute(job, request.fire_time, by="request")
        if not result.ran and result.again_at is not None:
            requests.put_back_held(self.stores.requests, request, result.again_at - self.clock.now())
        return result

    # -- the flow -------------------------------------------------------------------------------------------

    def execute(self, job: ScheduledJob, fire_time: datetime, *, by: By, params: str = "") -> Result:
        """Run one fire time of a job, whose body may be sync or async, to its end in this thread."""
        return self._steps(job, fire_time, by, params).run()

    async def execute_async(
        self, job: ScheduledJob, fire_time: datetime, *, by: By, params: str = ""
    ) -> Result:
        """The same for an async body, without blocking the event loop this is called on."""
        return await self._steps(job, fire_time, by, params).run_async()

    def _steps(self, job: ScheduledJob, fire_time: datetime, by: By, params: str) -> Steps[Started, Result]:
        return Steps(
            lambda: telling.not_run(
                self.settings.namespace, self.begin(job, fire_time, by=by, params=params)
            ),
            lambda started, _, error: self.finish(started, error),
        )

    def begin(self, job: ScheduledJob, fire_time: datetime, *, by: By, params: str = "") -> Started | Result:
        """Lease, claim, and a run to hand to the body; or why nothing runs here."""
        with self._inflight.beginning():
            if self.stop.cause is not None:
                return telling.refused(job, fire_time, Refusal.STOPPING)
            wait = self.server_clock.until(fire_time) + job.delay(fire_time)
            is_near = by == "timer" and 0 < wait <= NEAR + job.jitter
            if is_near and self.clock.wait(self.stop.event, wait):
                return telling.refused(job, fire_time, Refusal.STOPPING)
            begun = self._begin(job, fire_time.astimezone(UTC).replace(microsecond=0), by=by, params=params)
            early = by == "timer" and 0 < self.server_clock.until(fire_time) <= NEAR
            if early and isinstance(begun, Result) and begun.again_at is not None:  # our clock was ahead
                return self.begin(job, fire_time, by=by, params=params)
            return begun

    def _begin(self, job: ScheduledJob, fire_time: datetime, *, by: By, params: str) -> Started | Result:
        asked_at = self.clock.elapsed()
        try:
            lease = Lease.acquire(
                self.stores.leases, self.registry.lock_name(job.name), self.settings.lease, self.clock
            )
            if lease is None:
                held = telling.refused(job, fire_time, Refusal.HELD_ELSEWHERE)
                return replace(held, again_at=self.clock.now() + requests.HELD_AGAIN)
        except StoreError as error:
            return telling.not_claimed(job, fire_time, error)
        leased_at = self.clock.elapsed()
        try:
            self.server_clock.note(lease.server_now(), lease.doubt)
            claimed = claim(
                self.registry, job, fire_time, lease, by=by, age=self.age, grace=self.grace, params=params
            )
        except (StoreError, RunInterrupted) as error:
            lease.release()
            return telling.not_claimed(job, fire_time, error)
        except BaseException:
            lease.release()
            raise
        if isinstance(claimed, Refused):
            send_left(self.follow_ups, self.registry, claimed.unsent)
            lease.release()
            # Given up for good without being run: somebody must hear of it.
            if claimed.outcome is not Outcome.SKIPPED:
                log.error(
                    "job %s, fire time %s: %s: %s", job.name, fire_time, claimed.outcome, claimed.reason
                )
            result = Result(job.name, fire_time, claimed.outcome, claimed.reason, again_at=claimed.not_before)
            return replace(result, refusal=Refusal.TURNED_AWAY)
        stop = StopSignal(self.stop)
        try:
            started = self._start(job, claimed, lease, stop)
        except BaseException as error:  # such as no thread for the renewal: nobody would ever finish it
            stop.detach()
            lease.release()
            if not isinstance(error, Exception):
                raise
            return telling.not_claimed(job, fire_time, error)
        telling.begins(started, asked_at, leased_at)
        return started

    def _start(self, job: ScheduledJob, claimed: Claim, lease: Lease, stop: StopSignal) -> Started:
        limits = terms(job.max_runtime, self.settings.shutdown_timeout, self.clock.elapsed())
        lease.renew_until(limits.let_go)
        lease.tell(stop.set)
        keeper = self.keeper and self.keeper(lease, job.stall_after, limits.let_go)
        if keeper is not None:  # its process is there already
            lease.keep(stop.set, keeper)
        token = claimed.run.token
        blobs = Blobs(self.stores.blobs, self.settings.namespace, job.name, token, lease.check, self.clock)
        at = f"{claimed.run.fire_time:%Y-%m-%dT%H:%M:%SZ}"
        run = Run(
            registry=self.registry,
            claim=claimed,
            lease=lease,
            stop=stop,
            blobs=blobs,
            log=run_logger(job.name, at, claimed.run.attempt, fire_time=at, holder=claimed.run.holder),
            deadline=limits.deadline,
            follow_ups=self.follow_ups,
        )
        started = Started(
            who=f"Job {job.name}",
            body=job.with_params(claimed.run.params),
            arguments=(run,),
            stop=stop,
            job=job,
            run=run,
            claim=claimed,
            lease=lease,
            deadline=limits.deadline,
            switch=Switch(self.stores.requests, job.name, claimed.run.fire_time, lease, self.clock),
        )
        # Paused since it claimed: somebody may have taken over, so the body does not begin.
        if not lease.held:
            stop.set(LeaseLost(f"Job {job.name}: its lease ran out before the run began."))
        limit, kept = partial(self._watch, started, limits), keeper is not None
        start_thread(partial(attend, started, self.clock, limit, kept=kept), f"runonce-attend-{job.name}")
        self._inflight.add(started)
        run.log.info("started (token %d, by %s, on %s)", token, claimed.run.by, self.registry.host)
        return started

    def _watch(self, started: Started, limits: Terms) -> None:
        if self.clock.wait(started.over, limits.deadline - self.clock.elapsed()):
            return
        over_its_time(started)
        # Its process may be killed for it, as on Functions, which must not pass for its host's death.
        if not self.clock.wait(started.over, limits.let_go - self.clock.elapsed()):
            self._record(started, self._judge(started, started.stop.cause))

    def finish(self, started: Started, error: BaseException | None) -> Result:
        """Record what came of the body, release the lease, and say it."""
        started.over.set()
        if self.clock.elapsed() >= started.deadline:  # the thread that watches may be late
            over_its_time(started)
        try:
            result = self._record(started, self._judge(started, error))
            send_left(self.follow_ups, self.registry, started.claim.run)
        finally:
            started.stop.detach()
            started.lease.release()
            self._hand_on(started)
            if started.claim.run.outcome is not Outcome.RUNNING:  # or this brings it to its next attempt
                started.switch.remove()
            self._inflight.remove(started)
        if result.again_at is not None:
            delay = result.again_at - self.clock.now()
            requests.ask(self.stores.requests, result.job, result.fire_time, "retrying", delay)
        telling.ended(started, result)
        return result

    def _hand_on(self, started: Started) -> None:
        """Ask for the job's next unfinished fire time at once, now that its lease is free.

        Mostly there is none and no call is made. So a stopped run goes on elsewhere within a second, and fire times
        that were missed, or whose ticks found the lease held, follow each other without a recovery tick each.
        """
        fire_time = started.claim.next_due() or started.claim.passed()
        if fire_time is not None:
            requests.ask(self.stores.requests, started.job.name, fire_time, "next")

    def _judge(self, started: Started, error: BaseException | None) -> Result:
        """The outcome of what the body did."""
        job, row = started.job, started.claim.run
        self.server_clock.note(
            started.lease.server_now(), started.lease.doubt
        )  # ours may have been set meanwhile
        ending, error = judge(error, started.stop, held=started.lease.held)
        result = Result(job.name, row.fire_time, *self._outcome(started, ending, error), row.attempt, error)
        if result.outcome is not Outcome.RETRYING:
            return result
        counted = ending is not Ending.OUT_OF_REACH
        wait = job.retry.wait(row.failures + 1) if counted else OUT_OF_REACH_AGAIN
        return replace(result, counted=counted, again_at=self.clock.now() + timedelta(seconds=wait))

    def _outcome(self, started: Started, ending: Ending, error: BaseException | None) -> tuple[Outcome, str]:
        job, host = started.job, self.registry.host
        if error is None:
            return Outcome.SUCCEEDED, ""
        match ending:
            case Ending.LOST:
                return Outcome.ABANDONED, str(error)
            case Ending.CUT_OFF if job.on_abandoned == "hold":
                return Outcome.UNKNOWN, f'{host} was stopping and cut it off, and on_abandoned="hold"'
            case Ending.OUT_OF_REACH:
                return Outcome.RETRYING, brief(error)
            case Ending.STOPPED | Ending.CUT_OFF:
                return Outcome.STOPPED, f"{host} was stopping; goes on from its last checkpoint"
        failed = isinstance(error, PermanentError) or started.claim.run.failures >= job.retry.retries
        return Outcome.FAILED if failed else Outcome.RETRYING, brief(error)

    def _record(self, started: Started, result: Result) -> Result:
        if result.outcome is Outcome.ABANDONED:
            return result  # not ours to write any more
        # What no checkpoint took along goes with the outcome, so that a death cannot come between the two.
        succeeded = result.outcome is Outcome.SUCCEEDED

        def finish(entries: Mapping[str, Mapping[str, Value]]) -> None:
            outbox, fan_out = started.run.outbox.at_the_end(succeeded=succeeded)
            started.claim.finish(
                result.outcome,
                reason=shortened(result.reason),
                error="" if result.error is None else told(result.error),
                counted=result.counted,
                retry_at=result.again_at,
                entries=entries,
                outbox=outbox,
                fan_out=fan_out,
            )

        try:
            if succeeded:
                started.run.checkpoint.end(finish)
            else:
                finish({})
        except (LeaseLost, Fenced) as lost:
            return replace(result, outcome=Outcome.ABANDONED, reason=str(lost), error=lost, again_at=None)
        except Exception as trouble:  # noqa: BLE001 - a value that the storage's library refuses raises anything
            with_entries = succeeded and not started.run.ledger.is_empty
            if with_entries and not isinstance(trouble, StoreUnavailableError):
                return self._record(started, self._judge(started, trouble))  # the entries were refused
            reason = f"ended as {result.outcome}, which could not be recorded: {trouble}"
            error = trouble if isinstance(trouble, RunonceError) else StoreError(reason)
            return replace(result, outcome=Outcome.UNKNOWN, reason=reason, error=error, again_at=None)
        telling.recorded_by(started.claim, result.error)
        return result

    # -- stopping -------------------------------------------------------------------------------------------

    def abandon(self) -> list[str]:
        """Record runs that did not heed the stop, release their leases, right before the process ends; their jobs."""
        left = self.running
        for started in left:
            started.over.set()
            row = started.claim.run
            reason = f"it did not stop within {self.settings.shutdown_timeout:g} s on {self.registry.host}"
            outcome = Outcome.STOPPED
            if started.job.on_abandoned == "hold":  # its code is cut off wherever it is
                outcome, reason = Outcome.UNKNOWN, f'{reason}, and on_abandoned="hold"'
            self._record(started, Result(started.job.name, row.fire_time, outcome, reason, row.attempt))
        # While nobody else can begin, for what did not stop goes on until its process ends.
        hooks.drain(LAST_WORDS)
        for started in left:  # not before all are recorded: somebody else may begin then
            started.lease.release()
        for started in left:
            self._hand_on(started)
            started.switch.remove()
        return [started.job.name for started in left]
