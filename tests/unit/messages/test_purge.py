from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import KEY, begun, delivery, handling, ownership, raw_row, row_of, silence

from runonce.hosts.discover import Discovered
from runonce.hosts.purge import NAME, purge_job
from runonce.messages.definition import MESSAGE_TTL, REPLAY_HORIZON
from runonce.messages.purge import purge_claims
from runonce.messages.rows import SHARDS, partition
from runonce.runs.rows import Outcome
from runonce.stores.protocols import Replace
from runonce.testing import Complete, DeadLetter, Workbench
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from runonce.messages.definition import Handler

DAY = 86_400


@pytest.fixture
def bench() -> Workbench:
    made = Workbench(clock=PassingClock())
    silence(made.deliverer)
    return made


def purged(bench: Workbench, *handlers: Handler) -> set[str]:
    """Run the nightly purge a bit later than now; the keys of the claims that are left."""
    found = Discovered(handlers={one.name: one for one in handlers})
    job = purge_job(bench.dispatcher.registry, ownership(bench), found, bench.settings.history_days)
    bench.dispatcher.jobs[NAME] = job  # type: ignore[index]
    assert bench.run(job, bench.clock.now() + timedelta(seconds=1)).outcome is Outcome.SUCCEEDED
    return {
        str(row.values["key"])
        for one in handlers
        for shard in range(SHARDS)
        for row in bench.stores.claims.scan(
            partition(bench.settings.namespace, one.name, shard), "claim:", "claim;"
        )
    }


def test_a_claim_is_removed_after_its_retention(bench: Workbench) -> None:
    """A done claim goes once its retention is over, of every handler; one that failed is its dead letter's."""
    one = handling(retention=timedelta(days=22))
    other = handling(name="other", retention=timedelta(days=30))
    bad = handling(lambda _: 1 / 0, name="bad", retries=0, retention=timedelta(days=22))
    bench.deliver(one, {"id": KEY})
    bench.deliver(other, {"id": "B"})
    assert isinstance(bench.deliver(bad, {"id": "C"}), DeadLetter)
    bench.clock.advance(22 * DAY + 5)
    assert purged(bench, one, other, bad) == {"B", "C"}
    bench.clock.advance(8 * DAY)
    assert purged(bench, one, other, bad) == {"C"}


@pytest.mark.slow
@pytest.mark.parametrize("days", [0, 1, 14, 20.9, 29.99])
def test_a_claim_is_never_removed_early(bench: Workbench, days: float) -> None:
    """As long as its message may still come, from the queue or by a replay, a claim is there to recognise it."""
    one = handling()
    bench.deliver(one, {"id": KEY})
    bench.clock.advance(days * DAY)
    assert purged(bench, one) == {KEY}
    assert bench.deliver(one, {"id": KEY}, delivery_count=2) == Complete(duplicate=True)


def test_the_shortest_retention_outlasts_every_message(bench: Workbench) -> None:
    """Even the shortest retention there may be keeps a claim for the queue's time and the time for replays."""
    least = MESSAGE_TTL + REPLAY_HORIZON
    one = handling(retention=least)
    bench.deliver(one, {"id": KEY})
    bench.clock.advance(least.total_seconds() - 60)
    assert purged(bench, one) == {KEY}


def test_unfinished_claims_stay_for_ever(bench: Workbench) -> None:
    """Claimed, released and unknown messages are somebody's to finish, and are never removed."""
    working, failing = handling(), handling(lambda _: 1 / 0, name="failing", retries=3)
    held = handling(name="held", on_abandoned="hold")
    begun(bench.deliverer, working)
    bench.deliver(failing, {"id": "B"})
    begun(bench.deliverer, held, delivery({"id": "C"}))
    bench.clock.advance(100)
    assert isinstance(bench.deliver(held, {"id": "C"}, delivery_count=2), DeadLetter)
    bench.clock.advance(3000 * DAY)
    assert purged(bench, working, failing, held) == {KEY, "B", "C"}


def test_rows_that_handlers_wrote_stay(bench: Workbench) -> None:
    """What a handler committed is its own, and outlasts the claim."""
    one = handling(lambda m: m.commit({"row": {"n": 1}}))
    bench.deliver(one, {"id": KEY})
    bench.clock.advance(31 * DAY)
    assert purged(bench, one) == set()
    assert [row["name"] for row in bench.effects(one)] == ["row"]


def test_a_claim_that_changes_meanwhile_is_kept(bench: Workbench) -> None:
    """A claim that is replayed between reading and deleting it stays, and the others of its batch still go."""
    one = handling()
    keys = [f"k{n}" for n in range(150)]
    for key in keys:
        bench.deliver(one, {"id": key})
    bench.clock.advance(31 * DAY)
    table = bench.stores.claims
    scan = table.scan

    def racing(where: str, *ends: str, **more: Any) -> Any:
        found = list(scan(where, *ends, **more))
        kept = raw_row(bench, one, "k7")
        assert kept is not None
        if any(row.key == kept.key for row in found):
            table.commit(where, [Replace(kept.key, {**kept.values, "generation": 1}, kept.etag)])
        return found

    table.scan = racing  # type: ignore[method-assign, assignment]
    now, never = datetime(2026, 2, 5, tzinfo=UTC), lambda: None
    registry = ownership(bench)
    assert sum(purge_claims(registry, one.name, shard, now, never) for shard in range(SHARDS)) == 149
    assert row_of(bench, one, "k7").generation == 1
