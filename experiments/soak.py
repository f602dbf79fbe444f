"""Replicas that are killed, paused and stopped for minutes, on an emulator that is restarted; then an accounting.

    python dev.py soak                       ten minutes
    python dev.py soak --minutes 2 --seed 7

Six real processes serve twenty jobs, each of which fires once a minute, and a handler. Half of them may see that
another one's process is dead, the rest are as if each were on a machine of its own. What befalls them follows from the
seed; when exactly, from the machine. It ends with 1 where a fire time or a message is missing or was done twice.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from azurite import launcher
from experiments.accounts import (
    BEGIN,
    END,
    JOBS,
    ORDER,
    Account,
    account_jobs,
    account_messages,
    name_of,
    orders,
    second_of,
    work_of,
)
from experiments.effects import CLOCK
from experiments.lab import Finding, Lab, plural
from experiments.messages import VISIBILITY
from experiments.processes import ExperimentError, Processes
from experiments.program import SAMPLE, ended_by_signals
from experiments.replica import NEIGHBOURS
from experiments.table import print_summary
from runonce.errors import StoreError, StoreUnavailableError, TransportError
from runonce.execution.threads import start_thread
from runonce.messages.sending import outgoing
from runonce.settings import LeaseTerms, Settings, StorageConnection
from runonce.stores.azure.wire import services
from runonce.transports.protocols import Outgoing
from runonce.transports.storage import StorageTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.processes import Replica

REPLICAS, RESTARTS = 6, 3
TERMS = LeaseTerms(15, 5, 2)
RECOVERY = 5.0
BETWEEN = 6.0
"""Seconds between two things that befall a replica, on average."""
AWAY = 3.0
"""Seconds that the emulator is away, beside those it takes to end and to start."""
MESSAGES_A_MINUTE = 20
SETTLES = 300.0
"""Seconds after the last minute until everything must be accounted for: a request that a dead host had taken is asked
for again after two minutes."""
STOPS = 60.0
KINDS = (("kill -9", 6), ("pause", 4), ("stop", 2))


@dataclass(frozen=True, slots=True)
class Blow:
    """Something that befalls a replica, or the emulator."""

    at: float
    """Seconds after the beginning."""
    kind: str
    dice: float
    """Chooses the replica, busy ones first."""
    seconds: float
    """How long a pause lasts."""


def blows(seed: int, minutes: float) -> list[Blow]:
    """What happens in so many minutes."""
    rng, lasts = random.Random(seed), 60.0 * minutes  # noqa: S311 - no secret
    drawn = [Blow(lasts * (n + 1) / (RESTARTS + 1), "Azurite restart", 0.0, AWAY) for n in range(RESTARTS)]
    at = 0.0
    while (at := at + rng.expovariate(1 / BETWEEN)) < lasts:
        (kind,) = rng.choices([k for k, _ in KINDS], [w for _, w in KINDS])
        drawn.append(Blow(at, kind, rng.random(), rng.choice((1.0, 5.0, 14.0, 20.0, 40.0))))
    return sorted(drawn, key=lambda blow: blow.at)


class Soak:
    """One soak, while it runs."""

    def __init__(self, lab: Lab, azurite: launcher.Azurite, folder: Path, seed: int, minutes: int) -> None:
        self._lab = lab
        self._azurite = azurite
        self._folder = folder
        self._minutes = minutes
        self._blows = blows(seed, minutes)
        self._replicas: list[Replica] = []
        self._woken: list[tuple[float, Replica]] = []
        """Paused ones, and when they are woken."""
        self.befell: Counter[str] = Counter()
        self.ended: Counter[int] = Counter()
        """Exit codes of those that were told to stop."""
        self._sent: set[str] = set()
        self._transport = StorageTransport(services(lab.settings.storage, "queue")[0], VISIBILITY)
        self._is_over = False

    # -- replicas -----------------------------------------------------------------------------------------------

    def _start(self, number: int) -> Replica:
        environ = {"RUNONCE_STORAGE": self._azurite.connection_string}
        if number % 2:
            environ[NEIGHBOURS] = "1"
        terms = self._lab.settings.lease
        for name, value in (
            ("DURATION", terms.duration),
            ("RENEWAL", terms.renewal),
            ("MARGIN", terms.margin),
        ):
            environ[f"RUNONCE_LEASE_{name}"] = f"{value:g}"
        return self._lab.spawn("soaked", environ=environ)

    def _busy(self) -> list[int]:
        """Places whose replica has begun something and not ended it."""
        open_: set[tuple[int, str]] = set()
        for effect in self._lab.effects.read():
            work, _, part = effect.key.partition(" ")
            if part == BEGIN:
                open_.add((effect.pid, work))
            elif part == END:
                open_.discard((effect.pid, work))
        pids = {pid for pid, _ in open_}
        return [place for place, replica in enumerate(self._replicas) if replica.pid in pids]

    def _strike(self, blow: Blow) -> None:
        if blow.kind == "Azurite restart":
            self._restart(blow)
        else:
            paused = {replica.pid for _, replica in self._woken}
            up = [n for n in range(REPLICAS) if self._replicas[n].pid not in paused]
            pool = [n for n in self._busy() if n in up] or up
            if not pool:
                return
            place = pool[int(blow.dice * len(pool))]
            replica = self._replicas[place]
            if blow.kind == "pause":
                replica.process.send_signal(signal.SIGSTOP)
                self._woken.append((CLOCK.elapsed() + blow.seconds, replica))
            else:
                replica.process.send_signal(signal.SIGKILL if blow.kind == "kill -9" else signal.SIGTERM)
                self._replicas[place] = self._start(place)
        self.befell[blow.kind] += 1

    def _restart(self, blow: Blow) -> None:
        self._lab.say("Azurite ends, and starts again with its data")
        ports = self._azurite.ports
        self._azurite.stop()
        self._lab.rest(blow.seconds)
        self._azurite = launcher.start(self._folder, ports)

    def _wake(self, *, all_of_them: bool = False) -> None:
        now = CLOCK.elapsed()
        for entry in list(self._woken):
            if all_of_them or entry[0] <= now:
                entry[1].process.send_signal(signal.SIGCONT)
                self._woken.remove(entry)

    # -- messages -----------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send each message twice, under ids of their own, and again where it is not known whether it was taken."""
        handler, number = orders(self._lab.settings.namespace, self._lab.effects), 0
        sender = self._transport.sender()
        while not self._is_over:
            one = outgoing(handler, {"order": number})
            try:
                sender.send(handler.queue, [Outgoing(one.body, f"{one.message_id}-{n}") for n in range(2)])
            except (TransportError, StoreError):
                self._lab.rest(1.0)
                continue
            self._sent.add(f"{ORDER}/{number}")
            number += 1
            self._lab.rest(60.0 / MESSAGES_A_MINUTE)
        sender.close()

    # -- from beginning to end ----------------------------------------------------------------------------------

    def run(self) -> list[Finding]:
        """Carry it out; what came of it."""
        self._lab.say(f"starting {REPLICAS} replicas with {JOBS} jobs each")
        self._replicas = [self._start(number) for number in range(REPLICAS)]
        for replica in self._replicas:
            replica.hear("ready")
        first = (CLOCK.now() + timedelta(seconds=62)).replace(second=0, microsecond=0)
        fire_times = {
            work_of(name_of(n), at): at
            for n in range(JOBS)
            for minute in range(self._minutes)
            for at in [first + timedelta(minutes=minute, seconds=second_of(n))]
        }
        began = CLOCK.elapsed() + (first - CLOCK.now()).total_seconds()
        self._lab.say(f"the first of {len(fire_times)} fire times is {first:%H:%M:%S}")
        sending = start_thread(self._send, "soak-orders")
        self._befall(began)
        self._lab.say("nothing breaks any more; everything has to be accounted for")
        self._is_over = True
        sending.join()
        found = self._accounted(fire_times)
        self._stop()
        return [*found, self._on_time(fire_times), self._survived()]

    def _befall(self, began: float) -> None:
        left, until, told = list(self._blows), began + 60.0 * self._minutes, 0
        while (now := CLOCK.elapsed()) < until:
            self._wake()
            if left and began + left[0].at <= now:
                self._strike(left.pop(0))
            if (minute := int(now - began) // 60) > told:
                told = minute
                self._lab.say(f"minute {minute} of {self._minutes}: {self._told()}")
            self._lab.rest(0.05)
            if self._lab.processes.ended.is_set():
                raise ExperimentError("stopped before it was over")
        self._wake(all_of_them=True)

    def _told(self) -> str:
        return ", ".join(f"{what} {count}" for what, count in sorted(self.befell.items()))

    def _accounted(self, fire_times: dict[str, datetime]) -> list[Finding]:
        """Both accounts, once they are whole or have had time enough."""
        lab, give_up_at = self._lab, CLOCK.elapsed() + SETTLES
        stores, namespace = lab.stores, lab.settings.namespace
        accounts: dict[str, Account] = {}
        while CLOCK.elapsed() < give_up_at:
            noted = lab.effects.read()
            with suppress(StoreUnavailableError):  # the emulator is slow where much else runs
                accounts = {
                    "fire times": account_jobs(stores, namespace, fire_times, noted),
                    "messages": account_messages(stores, namespace, self._sent, noted),
                }
            if accounts and not any(one.missing for one in accounts.values()):
                break
            lab.rest(1.0)
        if not accounts:
            raise ExperimentError("storage did not answer, so nothing can be accounted for")
        for one in accounts.values():
            for line in one.told():
                lab.say(line)
        return [one.finding(what, "each done once") for what, one in accounts.items()]

    def _on_time(self, fire_times: dict[str, datetime]) -> Finding:
        """How late fire times began, and how often another replica went on."""
        ahead = (CLOCK.now() - datetime.fromtimestamp(0, UTC)).total_seconds() - CLOCK.elapsed()
        begins: dict[str, list[float]] = {}
        for effect in self._lab.effects.read():
            work, _, part = effect.key.partition(" ")
            if part == BEGIN and work in fire_times:
                begins.setdefault(work, []).append(effect.at + ahead - fire_times[work].timestamp())
        late = sorted(min(found) for found in begins.values())
        taken = sum(len(found) - 1 for found in begins.values())
        if not late:
            return Finding("begins", "", "nothing began", ok=False)
        return Finding(
            "begins",
            "",
            f"{median(late):.1f} s late in the median, {late[-1]:.1f} s at most; begun again elsewhere "
            f"{plural(taken, 'time')}",
            ok=True,
        )

    def _stop(self) -> None:
        for replica in self._replicas:
            replica.process.terminate()
        for replica in self._replicas:
            self.ended[replica.process.wait(STOPS)] += 1

    def _survived(self) -> Finding:
        ended = ", ".join(f"{plural(count, 'replica')} with {code}" for code, count in self.ended.items())
        return Finding(
            "what befell them",
            "replicas end with 0",
            f"{self._told()}; in the end told to stop: {ended}",
            ok=set(self.ended) == {0},
        )

    @property
    def azurite(self) -> launcher.Azurite:
        """The emulator that runs now."""
        return self._azurite


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak; 1 where a fire time or a message is missing, or was done twice."""
    parser = argparse.ArgumentParser(prog="dev.py soak", description=__doc__)
    parser.add_argument("--minutes", type=int, default=10, metavar="N", help="how long (default: 10)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of what befalls them (default: 1)")
    options = parser.parse_args(arguments)
    if sys.platform == "win32":
        sys.exit("A soak pauses and kills processes by signals, which Windows has not.")
    console, began = Console(highlight=False), CLOCK.elapsed()

    def say(what: str) -> None:
        console.print(Text(f"{CLOCK.elapsed() - began:6.1f} s  {what}"), overflow="fold")

    processes = Processes()
    with tempfile.TemporaryDirectory(prefix="runonce-soak-") as name, ended_by_signals():
        data = Path(name, "azurite")
        soak = None
        azurite = launcher.start(data)
        try:
            settings = Settings(
                "soak", StorageConnection(azurite.connection_string), TERMS, recovery_interval=RECOVERY
            )
            lab = Lab("soak", settings, SAMPLE, Path(name), processes, say)
            soak = Soak(lab, azurite, data, options.seed, options.minutes)
            findings = soak.run()
        except ExperimentError as error:
            sys.exit(str(error))
        finally:
            processes.end()
            (azurite if soak is None else soak.azurite).stop()
    console.print()
    shown = {finding.done: [finding] for finding in findings}
    return print_summary(console, shown, CLOCK.elapsed() - began)


if __name__ == "__main__":
    sys.exit(main())
