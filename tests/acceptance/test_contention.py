"""Many contenders, one fire time."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from support.replica import START, Config, Replicas, elapsed

from runonce.runs.rows import Outcome, decode_run

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

PROCESSES, THREADS, ROUNDS = 5, 10, 4


@pytest.mark.slow
def test_fifty_contenders_run_a_fire_time_once(tmp_path: Path, settings: Settings, azure: Stores) -> None:
    """Ten threads in each of five processes tick a job at the same instant, four jobs in turn: each runs once."""
    jobs = [f"contended-{n}" for n in range(ROUNDS)]
    config = Config(
        connection_string=settings.storage.connection_string or "",
        namespace=settings.namespace,
        diary=str(tmp_path / "diary"),
        began=elapsed() + 6,  # by then all of them are there
        jobs=jobs,
        schedule="0 0 3 * * *",
        mode="contend",
        items=1,
        threads=THREADS,
        fire_times=[START.isoformat()],
    )
    with Replicas(config, tmp_path) as replicas:
        processes = [replicas.start(f"replica-{n}") for n in range(PROCESSES)]
        answers = [process.communicate(timeout=60)[0] for process in processes]
        assert all(process.returncode == 0 for process in processes), replicas.logs()
        diary = replicas.diary()
    results = [result for answer in answers for result in json.loads(answer)]
    assert len(results) == PROCESSES * THREADS * ROUNDS
    for job in jobs:
        outcomes = Counter(r.split()[1] for r in results if r.startswith(f"{job} "))
        assert outcomes == {"succeeded": 1, "skipped": PROCESSES * THREADS - 1}
        assert [line["what"] for line in diary if line["job"] == job] == ["start", "item", "end"]
    # They did meet: most found the lease held, not the work done.
    assert sum("held elsewhere" in result for result in results) > ROUNDS * PROCESSES
    runs = [decode_run(row) for row in azure.runs.scan(settings.namespace, "run:", "run;")]
    assert [(run.outcome, run.attempt, run.token) for run in runs] == [(Outcome.SUCCEEDED, 1, 1)] * ROUNDS
