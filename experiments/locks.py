"""Leases in blobs (also with a leader), PostgreSQL and Redis, and no lock: a holder is killed, and one is paused."""

from __future__ import annotations

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from experiments import no_lock
from experiments.effects import CLOCK
from experiments.lab import Finding
from experiments.pause import entries
from experiments.replica import PAUSED, runtime, steady_jobs
from runonce.runs.operate import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiments.effects import Effect
    from experiments.lab import Lab

KINDS = {
    "blob": "blob lease",
    "leader": "the same and a leader",
    "postgresql": "advisory lock",
    "redis": "Redis lease",
}
FIRE_TIMES = 5
APART = 2
"""Seconds between them, as the replica's short job is scheduled."""
WORKED = 3.0
"""Seconds of the long run before its host is killed: by then others will hear of its lease's end."""
AT_ONCE = 2.0
"""Seconds: two looks, a request and a claim."""
STARTING = 15.0
"""Seconds that processes may take, many of them starting at the same time."""


def run(lab: Lab) -> list[Finding]:
    """Carry it out."""
    lab.say("without a lock")
    (alone,) = no_lock.carried_out(lab.part("none"), 2)
    if sys.platform == "win32":
        seen = "skipped: Windows cannot pause a process (it has no SIGSTOP)"
        return [alone, Finding("a killed and a paused holder", "both are replaced", seen, ok=None)]
    with ExitStack() as servers, ThreadPoolExecutor(len(KINDS)) as pool:
        addresses = {kind: _address(kind, servers) for kind in KINDS}
        lab.say("each kind of lock: two hosts, of which one is killed, and a holder that is paused")
        found = pool.map(lambda kind: _tried(lab, kind, addresses[kind]), KINDS)
        return [alone, *found]


def _address(kind: str, servers: ExitStack) -> str | None:
    """Of a server that is started for it; empty for storage, and None where its program is not installed."""
    if kind in ("blob", "leader"):
        return ""
    try:
        # The tests' own, from requirements-dev.txt.
        module: Any = import_module(f"tests.support.{'redis_server' if kind == 'redis' else kind}")
    except ImportError:
        return None
    start: Callable[[], Any] = getattr(module, module.__name__.rpartition(".")[2])
    address: str = servers.enter_context(start())
    return address


def _tried(lab: Lab, kind: str, address: str | None) -> Finding:
    done = f"{KINDS[kind]}, two hosts, a killed and a paused holder"
    if address is None:
        seen = f"{KINDS[kind]}: skipped, install requirements-dev.txt for its server"
        return Finding(done, "each fire time once", seen, ok=None)
    part = lab.part(kind, leases=address)
    lease, tick = part.settings.lease.duration, part.settings.recovery_interval
    limit = lease + tick + STARTING
    environ = {"RUNONCE_LEASES": address, "RUNONCE_LEADER": "on" if kind == "leader" else "off"}
    (sleeper,) = part.start("holder", environ=environ)
    token = int(sleeper.hear("holding"))
    hosts = part.start("locked", 2, environ={**environ, PAUSED: str(sleeper.pid)})
    sleeper.process.send_signal(signal.SIGSTOP)
    paused = CLOCK.elapsed()

    first = part.wait("a first effect", limit, lambda: next(_of(part, "tick"), None))
    start = datetime.fromisoformat(first.key.partition(" ")[2])
    wanted = {f"tick {(start + timedelta(seconds=APART * n)).isoformat()}" for n in range(FIRE_TIMES)}
    part.wait(f"{FIRE_TIMES} fire times", limit, lambda: wanted <= set(part.times()))
    runs = sum(count for key, count in part.times().items() if key in wanted)

    operator = runtime(part.settings, job := steady_jobs(part.effects)[0]).dispatcher
    fire_time = job.schedule.previous(CLOCK.now())
    assert fire_time is not None  # noqa: S101 - it has one a year
    ask(operator, job, fire_time)
    working = part.wait("the long run", limit, lambda: next(_of(part, job.name), None))
    victim = next(host for host in hosts if host.pid == working.pid)
    part.rest(WORKED)
    victim.process.kill()
    killed = CLOCK.elapsed()
    other = part.wait(
        "its takeover", limit, lambda: next((e for e in _of(part, job.name) if e.pid != victim.pid), None)
    )

    taken = part.wait("a takeover from the paused one", 2 * limit, lambda: next(_of(part, "report"), None))
    part.wait("the report", limit, lambda: entries(part) == {"report": token + 1})
    sleeper.process.send_signal(signal.SIGCONT)
    sleeper.tell("go on")
    refused: dict[str, str] = json.loads(sleeper.hear("wrote"))
    sleeper.tell("without a fence")
    sleeper.hear("wrote")
    unfenced = sum(1 for _ in _of(part, "late"))
    part.end()
    late = sum(error != "Fenced" for error in refused.values())
    return judge(kind, runs, other.at - killed, taken.at - paused, (late, unfenced), limit)


def _of(part: Lab, word: str) -> Iterator[Effect]:
    return (effect for effect in part.effects.read() if effect.key.partition(" ")[0] == word)


def judge(kind: str, runs: int, killed: float, paused: float, late: tuple[int, int], limit: float) -> Finding:
    """What was seen, against what is expected.

    Args:
        kind: Of lock.
        runs: Of the fire times, all together.
        killed: Seconds until the holder that was killed was replaced.
        paused: The same of the one that was paused.
        late: What that still wrote: with a fence, and without.
        limit: Seconds within which a lease ends and somebody notices.
    """
    fenced, unfenced = late
    soon = AT_ONCE if kind == "postgresql" else limit
    return Finding(
        f"{KINDS[kind]}: two hosts; a holder is killed (-9), one is paused until it is replaced",
        f"each fire time once; a killed holder replaced within {soon:g} s, a paused one within {limit:g} s; what that "
        f"writes is refused, where there is a fence",
        f"{KINDS[kind]}: {FIRE_TIMES} fire times, {runs} runs; replaced after {killed:.1f} s (killed), {paused:.1f} s "
        f"(paused); late writes: {fenced} with a fence, {unfenced} without",
        ok=(runs, fenced, unfenced) == (FIRE_TIMES, 0, 1) and killed <= soon and paused <= limit,
    )
