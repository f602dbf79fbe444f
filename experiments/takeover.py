"""How soon another replica goes on, by what ended the first one and how long a lease lasts; all at the same time."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from experiments.effects import CLOCK
from experiments.invoicing import STARTING
from experiments.lab import Finding, plural
from experiments.replica import NEIGHBOURS, STEADY, runtime, steady_jobs
from runonce.runs.operate import ask
from runonce.runs.presence import hosts
from runonce.settings import LeaseTerms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.lab import Lab
    from experiments.processes import Replica
    from runonce.runs.dispatch import Dispatcher

TERMS = (LeaseTerms(45, 20, 5), LeaseTerms(15, 5, 2))
RECOVERY = 60.0
"""Seconds between recovery ticks, as in production: nothing here waits for one."""
APART = 2.5
"""Seconds between the beginnings of a replica's runs, so that their leases were renewed at different times."""
LOOKS = 2.0
"""Seconds in which a replica has seen what another one of its machine has in hand."""
BEGIN = 30.0


@dataclass(frozen=True, slots=True)
class End:
    """A way for a replica to end."""

    how: str
    terms: LeaseTerms
    number: int
    """The signal."""
    same_machine: bool = False

    @property
    def limits(self) -> tuple[float, float]:
        """Seconds until another one goes on, at least and at most."""
        terms, waits = self.terms, self.number == signal.SIGKILL and not self.same_machine
        least, most = (terms.duration - terms.renewal - 1.0, terms.duration) if waits else (0.0, 0.0)
        return least, most + STARTING


def ends() -> list[End]:
    """All that are compared."""
    return [
        end
        for terms in TERMS
        for end in (
            End("kill -9, the other one on another machine", terms, signal.SIGKILL),
            End("kill -9, the other one on the same machine", terms, signal.SIGKILL, same_machine=True),
            End("SIGTERM", terms, signal.SIGTERM),
        )
    ]


class Application:
    """One of each, with a namespace of its own: a replica with runs in hand, and another one."""

    def __init__(self, lab: Lab, number: int, end: End) -> None:
        self.end = end
        self._lab = lab
        settings = replace(
            lab.settings,
            namespace=f"{lab.settings.namespace}-{number}",
            lease=end.terms,
            recovery_interval=RECOVERY,
        )
        self._environ = {
            "RUNONCE_NAMESPACE": settings.namespace,
            "RUNONCE_RECOVERY_INTERVAL": f"{RECOVERY:g}",
            "RUNONCE_LEASE_DURATION": f"{end.terms.duration}",
            "RUNONCE_LEASE_RENEWAL": f"{end.terms.renewal:g}",
            "RUNONCE_LEASE_MARGIN": f"{end.terms.margin:g}",
        }
        if end.same_machine:
            self._environ[NEIGHBOURS] = "1"
        self._jobs = steady_jobs(lab.effects)
        self.dispatcher: Dispatcher = runtime(settings, *self._jobs).dispatcher
        self.victim = self.start()
        self.ended_at = 0.0

    def start(self) -> Replica:
        """Start a replica."""
        return self._lab.spawn("steady", environ=self._environ)

    def ask(self, number: int) -> None:
        """Ask for the run of a job."""
        job = self._jobs[number]
        fire_time = job.schedule.previous(CLOCK.now())
        assert fire_time is not None  # noqa: S101 - it has one a year
        ask(self.dispatcher, job, fire_time)

    def let_end(self) -> None:
        """End the replica with the runs."""
        self.victim.process.send_signal(self.end.number)
        self.ended_at = CLOCK.elapsed()

    def goes_on(self, replica: Replica) -> list[float] | None:
        """When a replica began with each of the runs, once it has begun with all."""
        first: dict[str, float] = {}
        for effect in self._lab.effects.read():
            if effect.pid == replica.pid:
                first.setdefault(effect.key, effect.at)
        return list(first.values()) if len(first) == STEADY else None

    def both_are_known(self) -> bool:
        """Whether each of the two has said that it is there."""
        return len(hosts(self.dispatcher.registry)) == 2  # noqa: PLR2004


def run(lab: Lab) -> list[Finding]:
    """Carry it out."""
    if sys.platform == "win32":
        skipped = "skipped: Windows has no signals that a process can heed"
        return [Finding("kill -9 and SIGTERM", "another goes on", skipped, ok=None)]
    lab.say("starting a replica each")
    applications = [Application(lab, number, end) for number, end in enumerate(ends())]
    for application in applications:
        application.victim.hear("ready")
    for number in range(STEADY):
        for application in applications:
            application.ask(number)
        lab.rest(APART)
    for application in applications:
        lab.wait("all runs to begin", BEGIN, partial(application.goes_on, application.victim))
    lab.say(f"each has {STEADY} runs in hand; starting another one each")
    others = [application.start() for application in applications]
    for application, other in zip(applications, others, strict=True):
        other.hear("ready")
        lab.wait("both to check in", BEGIN, application.both_are_known)
    lab.rest(LOOKS)
    for application in applications:
        application.let_end()
    lab.say("the first ones have ended or are told to stop")
    findings = []
    for application, other in zip(applications, others, strict=True):
        end = application.end
        began = lab.wait("all runs to go on", end.limits[1] + BEGIN, partial(application.goes_on, other))
        findings.append(judge(end, [at - application.ended_at for at in began]))
    return findings


def judge(end: End, waited: Sequence[float]) -> Finding:
    """What was seen, against what is expected."""
    least, most = end.limits
    done = f"{end.how}, lease {end.terms.duration} s"
    return Finding(
        done,
        f"another goes on with {plural(STEADY, 'run')} after {least:g} to {most:g} s",
        f"{done}: {min(waited):.1f} to {max(waited):.1f} s",
        ok=least <= min(waited) and max(waited) <= most,
    )
