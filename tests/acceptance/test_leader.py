"""A leader among replicas: what it saves in storage calls, counted; real processes of which the leader is killed."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING

import pytest
from support.flows import replica
from support.pages import ROOT, read

from runonce.execution.stop import StopSignal
from runonce.hosts.leader import leader_of, terms_of
from runonce.hosts.runtime import Runtime
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.dispatch import Started
from runonce.runs.presence import Presence
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome, decode_run, key_range
from runonce.testing import Host, Workbench
from runonce.testing.faults import Boundary

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.runs.run import Run

REPLICAS = 3
JOB = """
from runonce import Run, scheduled

@scheduled("* * * * * *")
def ticking(run: Run) -> None:
    run.ledger.record(f"{run.fire_time:%H%M%S}")
"""


def job(number: int) -> ScheduledJob:
    """A job that fires each minute."""

    def body(run: Run) -> None:
        """Nothing."""

    return scheduled("0 * * * * *", name=f"job-{number}")(body)


def calls_of_a_minute(jobs: int, *, leader: bool) -> dict[str, int]:
    """Storage calls of three local hosts in a minute in which each of so many jobs fires once.

    Every part is the toolkit's own: the fire times, whose losers meet the lease while the winner's job runs; a recovery
    tick and a sign of life; the looks at the queue, one a second; a leader's renewals, and the others' looks.
    """
    bench = Workbench(*(job(number) for number in range(jobs)))
    recover(bench.dispatcher)  # the rows are there
    boundary = Boundary()
    stores = boundary.around(bench.stores, lambda store, method, _: f"{store}.{method}")
    hosts = [replica(bench, stores=stores, host=f"host-{n}", stop=StopSignal()) for n in range(REPLICAS)]
    at_work = hosts[:1] if leader else hosts
    signs = [
        Presence(host.registry, host.jobs, bench.clock.now(), name=host.registry.host) for host in at_work
    ]
    for sign in signs:
        sign.check_in()
    bench.clock.advance(60 - bench.clock.now().second)
    fire_time, began = bench.clock.now(), len(boundary.calls)
    for one in list(hosts[0].jobs.values()):
        started = hosts[0].begin(one, fire_time, by="timer")
        assert isinstance(started, Started)
        for other in at_work[1:]:
            assert other.execute(one, fire_time, by="timer").reason == "held elsewhere"
        hosts[0].finish(started, None)
    fires = len(boundary.calls) - began
    for host, sign in zip(at_work, signs, strict=True):
        recover(host)
        sign.check_in()
        for _ in range(60):
            host.stores.requests.receive(visibility=30)
    ticks = len(boundary.calls) - began - fires
    leads = 0
    if leader:
        terms = bench.settings.lease
        own = leader_of(hosts[0])
        lease = own._ask()
        assert lease is not None
        leads = int(60 / terms_of(terms).renewal)
        assert all(lease._renewal_round() for _ in range(leads))
        before = len(boundary.calls)
        for host in hosts[1:]:
            for _ in range(int(60 / terms.renewal)):
                assert leader_of(host)._ask() is None
        leads += len(boundary.calls) - before
    return {"fire times": fires, "recovery and queue": ticks, "leading": leads, "all": fires + ticks + leads}


def test_the_saving_is_as_the_page_says() -> None:
    """For 10 and 100 jobs as counted here; the page's 1,000 jobs are as many for each."""
    shown = {
        int(jobs.replace(",", "")): (int(without.replace(",", "")), int(with_.replace(",", "")))
        for jobs, without, with_ in re.findall(
            r"^\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|", read("docs/locks.md"), re.MULTILINE
        )
    }
    assert set(shown) == {10, 100, 1000}
    counted = {
        jobs: tuple(calls_of_a_minute(jobs, leader=leader)["all"] for leader in (False, True))
        for jobs in (10, 100)
    }
    assert {jobs: shown[jobs] for jobs in counted} == counted
    for column in (0, 1):
        each = (counted[100][column] - counted[10][column]) / 90
        assert shown[1000][column] == counted[100][column] + 900 * each


def test_a_host_that_stands_by_makes_three_calls_a_minute() -> None:
    """One for each renewal period of 20 s, however many jobs there are; the leader renews six times."""
    without, with_ = calls_of_a_minute(10, leader=False), calls_of_a_minute(10, leader=True)
    assert with_["leading"] == 6 + 2 * 3
    assert with_["fire times"] == 10 * 5
    assert without["fire times"] == 10 * (5 + 2)
    assert without["recovery and queue"] == 3 * with_["recovery and queue"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_another_host_leads_when_the_leader_is_killed_or_stops(tmp_path: Path, azurite: str) -> None:
    """Of real processes one leads; killed -9 it is followed, stopped it hands over; no fire time runs twice."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "ticking.py").write_text(JOB)
    environ = {
        "RUNONCE_STORAGE": azurite,
        "RUNONCE_NAMESPACE": f"leader-{os.urandom(4).hex()}",
        "PYTHONPATH": str(ROOT),
        "RUNONCE_LEADER": "on",
        "RUNONCE_LEASE_DURATION": "15",
        "RUNONCE_LEASE_RENEWAL": "3",
        "RUNONCE_LEASE_MARGIN": "2",
    }
    hosts = [Host(tmp_path, tmp_path / f"log-{number}", environ) for number in range(3)]
    try:
        for end in (Host.kill, Host.stop):
            leader = leader_among(hosts)
            leader.wait_for(STARTED)
            hosts.remove(leader)
            assert not any(STARTED in host.log for host in hosts)
            end(leader)
        assert leader_among(hosts) is hosts[0]
        hosts[0].wait_for(STARTED)
    finally:
        for host in hosts:
            host.kill()
    with Runtime(environ=environ) as runtime:
        runs = [
            decode_run(row) for row in runtime.stores.runs.scan(runtime.settings.namespace, *key_range("run"))
        ]
    tokens = [run.token for run in runs if run.outcome is Outcome.SUCCEEDED]
    assert len(tokens) >= 3
    assert len(set(tokens)) == len(tokens)


STARTED = "started (token"


def leader_among(hosts: list[Host]) -> Host:
    """The one that leads, once one does."""
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        for host in hosts:
            if "this host leads" in host.log:
                return host
        time.sleep(0.1)
    pytest.fail("no host leads: " + "\n".join(host.log for host in hosts))
