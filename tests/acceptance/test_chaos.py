"""A hundred fire times, five replicas, and a hand that kills them."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from support.replica import Config, Replicas, elapsed

from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome, RunRow, decode_run
from runonce.runs.table import read_job

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

SEED = 20260101
JOBS, FIRE_TIMES, REPLICAS, KILLS, ITEMS = 20, 5, 5, 8, 3
AT_MOST = 150.0
"""Seconds for all of it; a third of that on a machine that does nothing else."""


@pytest.mark.slow
def test_every_fire_time_is_done_once_whoever_is_killed(
    tmp_path: Path, settings: Settings, azure: Stores
) -> None:
    """Replicas are killed at random instants and restarted: each of 100 fire times is done, once, none is lost."""
    chance = random.Random(SEED)
    start = fire_times_begin()
    began = elapsed() + (start - datetime.now(UTC)).total_seconds()
    seconds = [start.second + 2 * n for n in range(1, FIRE_TIMES + 1)]
    config = Config(
        connection_string=settings.storage.connection_string or "",
        namespace=settings.namespace,
        diary=str(tmp_path / "diary"),
        began=began,
        jobs=[f"job-{n:02}" for n in range(JOBS)],
        schedule=f"{','.join(map(str, seconds))} {start.minute} {start.hour} {start.day} {start.month} *",
        start=start.isoformat(),
        items=ITEMS,
        pause=0.15,
    )
    killed: dict[int, float] = {}
    recover(config.dispatcher("deployment"))  # from here on the jobs are known, and can miss a fire time
    with Replicas(config, tmp_path) as replicas:
        alive = {f"replica-{n}": replicas.start(f"replica-{n}") for n in range(REPLICAS)}
        first = replicas.wait_for("start", timeout=AT_MOST)[
            "at"
        ]  # however long a busy machine takes to get there
        for kill in range(KILLS):
            # From the first run on, about one kill every 1.5 seconds; of a replica at work, if one is.
            time.sleep(max(0.0, first + kill * 1.5 + chance.random() - elapsed()))
            busy = at_work(replicas.diary())
            name = chance.choice(sorted(n for n in alive if alive[n].pid in busy) or sorted(alive))
            alive[name].kill()
            alive[name].wait()
            killed[alive[name].pid] = elapsed()
            alive[name] = replicas.start(name)
        runs = wait_until_done(azure, settings, first + AT_MOST)
        diary = replicas.diary()
        logs = replicas.logs()

    done = [run for run in runs if run.outcome is Outcome.SUCCEEDED]
    assert len(done) == len(runs) == JOBS * FIRE_TIMES, (len(runs), unfinished(runs), logs)
    expected = sorted(
        (f"job-{n:02}", f"{start:%H%M}{second:02}-{item}")
        for n in range(JOBS)
        for second in seconds
        for item in (*range(ITEMS), "done")
    )
    assert effects(azure, settings) == expected
    for n in range(JOBS):
        dispatcher = config.dispatcher("judge")
        row, _ = read_job(dispatcher.registry, f"job-{n:02}")
        assert dict(row.pending) == {}
    ended_by_the_living = defaultdict(int)
    for line in diary:
        if line["what"] == "end" and line["pid"] not in killed:
            ended_by_the_living[line["job"], line["fire_time"]] += 1
    assert max(ended_by_the_living.values()) == 1
    # And the kills did hit something.
    assert sum(run.abandoned for run in runs) >= 3
    assert_no_two_at_once(diary, killed)


def fire_times_begin() -> datetime:
    """A real instant a few seconds ahead, for storage's clock is real; the fire times after it lie in one minute."""
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=6)
    latest = 59 - 2 * FIRE_TIMES
    return soon if soon.second <= latest else soon + timedelta(seconds=60 - soon.second)


def at_work(diary: list[dict[str, Any]]) -> set[int]:
    """The processes that have begun a body and not ended it."""
    open_runs: set[tuple[int, str]] = set()
    for entry in diary:
        if entry["what"] == "start":
            open_runs.add((entry["pid"], entry["job"]))
        elif entry["what"] == "end":
            open_runs.discard((entry["pid"], entry["job"]))
    return {pid for pid, _ in open_runs}


def wait_until_done(azure: Stores, settings: Settings, until: float) -> list[RunRow]:
    """All run rows, once they are as many as expected and have succeeded, or when time is over."""
    while True:
        runs = [decode_run(row) for row in azure.runs.scan(settings.namespace, "run:", "run;")]
        done = sum(run.outcome is Outcome.SUCCEEDED for run in runs)
        if done >= JOBS * FIRE_TIMES or elapsed() > until:
            return runs
        time.sleep(0.5)


def unfinished(runs: list[RunRow]) -> list[str]:
    return [
        f"{r.job} {r.fire_time:%S} {r.outcome} #{r.attempt} {r.reason}"
        for r in runs
        if r.outcome is not Outcome.SUCCEEDED
    ]


def effects(azure: Stores, settings: Settings) -> list[tuple[str, str]]:
    """What the ledgers hold: job and key."""
    rows = azure.runs.scan(settings.namespace, "entry:", "entry;")
    return sorted((row.key.split(":")[1], str(row.values["key"])) for row in rows)


def assert_no_two_at_once(diary: list[dict[str, Any]], killed: dict[int, float]) -> None:
    """By the replicas' own account no two runs of a job ever overlapped, a killed one lasting until its death."""
    begins: dict[str, list[tuple[float, float]]] = defaultdict(list)
    ends = {(e["pid"], e["job"], e["fire_time"], e["attempt"]): e["at"] for e in diary if e["what"] == "end"}
    for line in diary:
        if line["what"] != "start":
            continue
        key = (line["pid"], line["job"], line["fire_time"], line["attempt"])
        assert key in ends or line["pid"] in killed, line
        begins[line["job"]].append((line["at"], ends.get(key, killed.get(line["pid"], 0.0))))
    for spans in begins.values():
        for (_, end), (start, _) in pairwise(sorted(spans)):
            assert end <= start
