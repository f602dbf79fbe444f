"""The soak's accounting: what was done once is told as that, and nothing else is. The soak itself runs at night."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from experiments.accounts import (
    END,
    Account,
    account_jobs,
    account_messages,
    jobs,
    name_of,
    orders,
    second_of,
    work_of,
)
from experiments.effects import Effects
from experiments.soak import KINDS, RESTARTS, blows
from runonce.runs.rows import Outcome, decode_run, entry_key, run_key
from runonce.runs.table import write
from runonce.stores.protocols import Delete, Insert
from runonce.testing import Complete, Workbench

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.stores.protocols import Write

AT = datetime(2026, 11, 29, 3, 0, second_of(1), tzinfo=UTC)
WORK = work_of(name_of(1), AT)


class Done:
    """One fire time that was run to its end, to be tampered with."""

    def __init__(self, folder: Path) -> None:
        self.effects = Effects(folder / "effects")
        job = jobs(self.effects, lambda _: None)[name_of(1)]
        self.bench = Workbench(job)
        assert self.bench.run(job, at=AT).outcome == "succeeded"
        self.namespace = self.bench.settings.namespace

    def account(self) -> Account:
        return account_jobs(self.bench.stores, self.namespace, [WORK], self.effects.read())

    def change(self, *writes: Write) -> None:
        self.bench.stores.runs.commit(self.namespace, writes)


@pytest.fixture
def done(tmp_path: Path) -> Done:
    return Done(tmp_path)


def test_a_fire_time_with_all_its_effects_is_done_once(done: Done) -> None:
    """One row and one call for each part, and a record that says so: nothing else is told of it."""
    account = done.account()
    assert account.done == {WORK}
    assert (account.named, account.missing, account.twice, account.repeated) == ({}, {}, {}, 0)
    assert account.finding("fire times", "").ok is True


def test_a_fire_time_without_a_record_is_missing(done: Done) -> None:
    """A fire time that nobody ran is missing, also where all others are done."""
    account = account_jobs(done.bench.stores, done.namespace, [WORK, "job-02/never"], done.effects.read())
    assert account.missing == {"job-02/never": "there is no record"}
    assert account.finding("fire times", "").ok is False
    assert account.told() == ["job-02/never is missing: there is no record"]


def test_a_row_that_is_gone_is_noticed(done: Done) -> None:
    """A run that is told as succeeded and lacks one of its effects is missing."""
    key = entry_key(name_of(1), f"{WORK} 2 1")
    row = done.bench.stores.runs.get(done.namespace, key)
    assert row is not None
    done.change(Delete(key, row.etag))
    assert done.account().missing == {WORK: "succeeded, without 2"}
    assert done.account().finding("fire times", "").ok is False


def test_a_row_of_a_second_attempt_is_noticed(done: Done) -> None:
    """The same part recorded by two attempts is told as twice, though the record says succeeded."""
    key = entry_key(name_of(1), f"{WORK} 2 2")
    done.change(Insert(key, {"key": f"{WORK} 2 2", "work": WORK, "part": "2"}))
    assert done.account().twice == {WORK: "2 rows of 2"}
    assert done.account().finding("fire times", "").ok is False
    assert done.account().finding("fire times", "").seen.startswith("1 fire times: 0 done once, ")


def test_a_fire_time_that_failed_is_named_with_its_reason(done: Done) -> None:
    """What a record says was not done, and why, is no violation; without a reason it is missing."""
    row = done.bench.stores.runs.get(done.namespace, run_key(name_of(1), AT))
    assert row is not None
    failed = replace(decode_run(row), outcome=Outcome.FAILED, reason="the disk is full")
    done.change(write(failed, row.etag))
    assert done.account().named == {WORK: "failed: the disk is full"}
    row = done.bench.stores.runs.get(done.namespace, row.key)
    assert row is not None
    done.change(write(replace(failed, outcome=Outcome.RETRYING), row.etag))
    assert list(done.account().missing) == [WORK]


def test_a_call_that_no_death_explains_is_noticed(done: Done) -> None:
    """Calls may be repeated once for each attempt that died, and no oftener."""
    done.effects.append(f"{WORK} {END}")
    account = done.account()
    assert account.twice == {WORK: "1 call too many in 1 attempt"}
    assert account.finding("fire times", "").ok is False


def test_a_message_without_its_effect_is_missing(tmp_path: Path) -> None:
    """Messages are accounted for as fire times are: one that was handled is done, one that was not is missing."""
    effects = Effects(tmp_path / "effects")
    bench = Workbench()
    assert bench.deliver(orders(bench.settings.namespace, effects), {"order": 1}) == Complete()
    account = account_messages(bench.stores, bench.settings.namespace, ["order/1", "order/2"], effects.read())
    assert (account.done, account.missing) == ({"order/1"}, {"order/2": "there is no record"})


def test_what_befalls_a_soak_follows_from_its_seed() -> None:
    """Ten minutes have every kind of blow, dozens of them, and three restarts of the emulator; a seed repeats them."""
    drawn = blows(1, 10)
    assert drawn == blows(1, 10) != blows(2, 10)
    kinds = Counter(blow.kind for blow in drawn)
    assert kinds["Azurite restart"] == RESTARTS
    assert all(kinds[kind] >= 5 for kind, _ in KINDS)
    assert all(0 < blow.at < 600 for blow in drawn)
