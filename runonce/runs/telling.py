"""What the log and the hooks are told of runs."""

from __future__ import annotations

import logging
from contextvars import copy_context
from datetime import datetime
from typing import TYPE_CHECKING

from runonce.errors import Fenced, LeaseLost, RunInterrupted, StoreError, StoreUnavailableError
from runonce.execution import events, hooks
from runonce.runs.result import Refusal, Result
from runonce.runs.rows import Outcome
from runonce.runs.troubles import OF_OUTCOME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runonce.execution.registry import Registry
    from runonce.runs.claim import Claim
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Started
    from runonce.runs.rows import JobRow, RunRow

log = logging.getLogger("runonce.runs.dispatch")

HEARD = ("before_run", "after_run", "on_lease_lost")


def begins(started: Started, asked_at: float, leased_at: float) -> None:
    """A run is claimed and about to begin; it was asked for, and had its lease, at these elapsed times."""
    if not any(map(hooks.listening, HEARD)):
        return
    run, registry, clock = started.claim.run, started.claim.registry, started.claim.registry.clock
    started.context = copy_context()
    begun = events.RunBegun(
        namespace=registry.namespace,
        host=registry.host,
        at=clock.now(),
        holder=run.holder,
        attempt=run.attempt,
        token=run.token,
        idempotency_key=run.idempotency_key,
        taken_over=started.claim.taken_over,
        context=started.context,
        job=run.job,
        fire_time=run.fire_time,
        by=run.by,
        late=max(0.0, (clock.now() - run.fire_time).total_seconds()),
        lease_seconds=leased_at - asked_at,
        claim_seconds=clock.elapsed() - leased_at,
    )

    def lost(cause: RunInterrupted) -> None:
        if isinstance(cause, LeaseLost | Fenced):
            hooks.tell("on_lease_lost", events.LeaseLost(work=begun, reason=str(cause)))

    started.told, started.began_at = begun, clock.elapsed()
    started.stop.listen(lost)
    hooks.tell_and_wait("before_run", begun)


def ended(started: Started, result: Result) -> None:
    """A run has ended here."""
    say = started.run.log
    if result.outcome is Outcome.SUCCEEDED:
        say.info("succeeded")
    elif result.outcome is Outcome.STOPPED:
        say.info("stopped: %s", result.reason)
    elif result.outcome is Outcome.RETRYING:
        at = "" if result.again_at is None else f" from {result.again_at:%H:%M:%SZ} on"
        say.warning("failed and will be tried again%s: %s", at, result.reason, exc_info=result.error)
    else:
        say.error("%s: %s", result.outcome, result.reason, exc_info=result.error)
    if started.told is not None:
        hooks.tell(
            "after_run",
            events.RunEnded(
                run=started.told,
                outcome=str(result.outcome),
                reason=result.reason,
                error=result.error,
                seconds=started.claim.registry.clock.elapsed() - started.began_at,
                again_at=result.again_at,
                renewed_late=started.lease.renewed_late,
            ),
        )


def refused(job: ScheduledJob, fire_time: datetime, refusal: Refusal) -> Result:
    """The result of a fire time of which nothing runs here."""
    return Result(job.name, fire_time, Outcome.SKIPPED, str(refusal), refusal=refusal)


def not_claimed(job: ScheduledJob, fire_time: datetime, error: Exception | RunInterrupted) -> Result:
    """The result of a fire time that could not be claimed or begun; it stays due."""
    refusal = Refusal.LEASE_LOST if isinstance(error, RunInterrupted) else Refusal.NOT_CLAIMED
    if isinstance(error, StoreUnavailableError):
        refusal = Refusal.OUT_OF_REACH
    reason = f"{refusal}: {error}"
    if isinstance(error, StoreError | RunInterrupted):
        log.warning("job %s, fire time %s: %s", job.name, fire_time, reason)
    else:
        log.error("job %s, fire time %s: %s", job.name, fire_time, reason, exc_info=error)
    return Result(job.name, fire_time, Outcome.SKIPPED, reason, error=error, refusal=refusal)


def not_run(namespace: str, begun: Started | Result) -> Started | Result:
    """What `begin` gave; where that is why nothing of a fire time is run here, the hooks are told."""
    if isinstance(begun, Result) and begun.refusal is not None and hooks.listening("on_not_run"):
        refused = events.NotRun(
            namespace=namespace,
            name=begun.job,
            fire_time=begun.fire_time,
            why=begun.refusal.name.replace("_", " ").lower(),
            reason=begun.reason,
        )
        hooks.tell("on_not_run", refused)
    return begun


def recorded_by(claim: Claim, error: BaseException | None) -> None:
    """The end of a run is recorded by its claim's write."""
    recorded(claim.registry, claim.run, claim.troubles_before, claim.troubles, error)


def recorded(
    registry: Registry,
    run: RunRow,
    before: Mapping[str, str],
    after: Mapping[str, str],
    error: BaseException | None = None,
) -> None:
    """The end of a run is on its row, by our write, which made these troubles of those before it."""
    kind = OF_OUTCOME.get(run.outcome)
    if kind is not None:
        _incident(registry, run.job, kind, run.reason, before, after, run=run, error=error)
    elif run.outcome is Outcome.SUCCEEDED and before:
        _incident(registry, run.job, "recovered", f"was {' and '.join(before)}", before, before, run=run)


def missed(registry: Registry, before: JobRow, after: JobRow, fire_time: datetime | None) -> None:
    """Our write has found that nobody ran a fire time."""
    if fire_time is not None:
        _incident(
            registry,
            after.name,
            "missed",
            "nobody ran it in time",
            before.troubles,
            after.troubles,
            at=fire_time,
        )


def _incident(
    registry: Registry,
    job: str,
    kind: events.IncidentKind,
    reason: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    *,
    run: RunRow | None = None,
    at: datetime | None = None,
    error: BaseException | None = None,
) -> None:
    if not hooks.listening("on_incident"):
        return
    since = min(after.values())
    hooks.tell(
        "on_incident",
        events.Incident(
            kind=kind,
            name=job,
            namespace=registry.namespace,
            id=f"{registry.namespace}/{job}/{since}",
            first=kind not in before,
            since=datetime.fromisoformat(since),
            at=registry.clock.now(),
            host=registry.host,
            reason=reason,
            fire_time=at if run is None else run.fire_time,
            attempt=0 if run is None else run.attempt,
            idempotency_key="" if run is None else run.idempotency_key,
            error=error,
        ),
    )
