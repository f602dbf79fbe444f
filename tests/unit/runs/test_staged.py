"""What a run stages while a save is under way: in the ledger once, in the order of time, and never lost."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at, recovered, replica, run_row

from runonce.errors import HostStopping, InputError, StoreError
from runonce.execution.stop import StopSignal
from runonce.runs.definition import scheduled
from runonce.runs.dispatch import Dispatcher
from runonce.runs.rows import Outcome
from runonce.runs.run import MAX_ENTRIES, Run
from runonce.testing import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.runs.definition import ScheduledJob
    from runonce.stores.protocols import TableStore, Write

T = at(3)


class Gate:
    """A table whose commits call `during` before they are carried out."""

    def __init__(self, table: TableStore) -> None:
        self._table = table
        self.during: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, partition: str, writes: Sequence[Write]) -> list[str]:
        """Let the test do something in the middle of a save."""
        self.during()
        return self._table.commit(partition, writes)


def host_of(job: ScheduledJob) -> tuple[Workbench, Gate, Dispatcher]:
    """A bench whose commits can be held up, and a host on it."""
    bench = Workbench(job)
    bench.clock.advance(3 * 3600)
    gate = Gate(bench.stores.runs)
    stores = replace(bench.stores, runs=gate)
    stop = StopSignal()
    return bench, gate, Dispatcher({job.name: job}, stores, bench.settings, bench.clock, host="h", stop=stop)


def entries(bench: Workbench) -> list[str]:
    """The keys of the ledger."""
    return [str(row.values["key"]) for row in bench.stores.runs.scan("test", "entry:", "entry;")]


def test_what_is_recorded_during_a_save_is_in_the_ledger_once() -> None:
    """Entries that other threads record while a save is under way are written by the next one, each once."""

    @scheduled("0 0 3 * * *")
    def charge(run: Run) -> None:
        recorded = iter(range(100))

        def meanwhile() -> None:
            helper = threading.Thread(target=lambda: run.ledger.record(f"during-{next(recorded):02}"))
            helper.start()
            helper.join()

        gate.during = meanwhile
        for number in range(5):
            run.ledger.record(f"before-{number}")
            run.checkpoint.save(number)
        gate.during = lambda: None

    bench, gate, host = host_of(charge)
    result = host.execute(charge, T, by="timer")
    assert result.outcome is Outcome.SUCCEEDED, result.reason
    assert entries(bench) == [f"before-{n}" for n in range(5)] + [f"during-{n:02}" for n in range(5)]


def test_coroutines_record_while_another_one_saves() -> None:
    """The way of an async job: many coroutines record, and one saves in a thread now and then; nothing is missing."""

    @scheduled("0 0 3 * * *")
    async def charge(run: Run) -> None:
        async def one(number: int) -> None:
            for _ in range(number):
                await asyncio.sleep(0)
            run.ledger.record(f"invoice-{number:02}")

        async def saver() -> None:
            for number in range(20):
                await asyncio.to_thread(run.checkpoint.save, number)

        await asyncio.gather(saver(), *(one(number) for number in range(80)))

    bench, _, host = host_of(charge)
    result = host.execute(charge, T, by="timer")
    assert result.outcome is Outcome.SUCCEEDED, result.reason
    assert entries(bench) == [f"invoice-{n:02}" for n in range(80)]


def test_a_key_whose_save_is_under_way_is_not_recorded_again() -> None:
    """The same key while its entry is being written is refused as one recorded twice, and the save goes on."""

    @scheduled("0 0 3 * * *")
    def charge(run: Run) -> None:
        def again() -> None:
            with pytest.raises(InputError, match="'a' is recorded twice"):
                run.ledger.record("a")

        run.ledger.record("a")
        gate.during = again
        run.checkpoint.save(1)
        gate.during = lambda: None

    bench, gate, host = host_of(charge)
    result = host.execute(charge, T, by="timer")
    assert result.outcome is Outcome.SUCCEEDED, result.reason
    assert entries(bench) == ["a"]


def test_a_save_that_fails_puts_its_entries_back() -> None:
    """Entries of a refused save, and as many recorded meanwhile, are all written by what comes after."""

    @scheduled("0 0 3 * * *")
    def charge(run: Run) -> None:
        def refuse() -> None:
            for number in range(MAX_ENTRIES):
                run.ledger.record(f"b-{number:02}")
            raise StoreError("refused")

        for number in range(MAX_ENTRIES):
            run.ledger.record(f"a-{number:02}")
        gate.during = refuse
        with pytest.raises(StoreError, match="refused"):
            run.checkpoint.save("lost")
        gate.during = lambda: None
        assert run.checkpoint.load() is None

    bench, gate, host = host_of(charge)
    result = host.execute(charge, T, by="timer")
    assert result.outcome is Outcome.SUCCEEDED, result.reason
    assert entries(bench) == [f"{letter}-{n:02}" for letter in "ab" for n in range(MAX_ENTRIES)]


def test_entries_can_be_recorded_after_a_save_that_failed_while_another_was_recorded() -> None:
    """What was put back, what came in meanwhile and what comes after are all in the ledger."""

    @scheduled("0 0 3 * * *")
    def charge(run: Run) -> None:
        def meanwhile() -> None:
            gate.during = lambda: None
            run.ledger.record("meanwhile")
            raise StoreError("refused")

        run.ledger.record("before")
        gate.during = meanwhile
        with pytest.raises(StoreError):
            run.checkpoint.save(1)
        run.ledger.record("after")

    bench, gate, host = host_of(charge)
    assert host.execute(charge, T, by="timer").outcome is Outcome.SUCCEEDED
    assert entries(bench) == ["after", "before", "meanwhile"]


def test_progress_never_goes_back() -> None:
    """A job that is stopped while a batch is being committed, and saves in `finally`, does not do that batch again."""
    batches: list[tuple[int, list[int]]] = []

    @scheduled("0 0 3 * * *")
    async def work(run: Run) -> None:
        cancelled = threading.Event()

        def stopped() -> None:
            gate.during = lambda: None
            host.stop.set(HostStopping())
            assert cancelled.wait(10)  # the body is in its `finally` before the batch is written

        try:
            async for batch in run.batches(range(6), size=2):
                batches.append((run.attempt, batch))
                if batches == [(1, [0, 1])]:
                    gate.during = stopped
        finally:
            cancelled.set()
            run.checkpoint.save({"stopped": run.attempt})

    bench, gate, host = host_of(work)
    assert host.execute(work, T, by="timer").outcome is Outcome.STOPPED
    assert run_row(bench, work, T).progress == {"items": 2}
    recovered(replica(bench), bench.clock)
    assert run_row(bench, work, T).outcome is Outcome.SUCCEEDED
    assert batches == [(1, [0, 1]), (2, [2, 3]), (2, [4, 5])]
