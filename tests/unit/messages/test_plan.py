"""The table of transitions: none, claimed, released, done, failed, unknown. The numbers are the table's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import handling

from runonce.execution.options import MAX_ABANDONED
from runonce.messages.plan import (
    EARLY,
    RESOLUTION,
    Arrival,
    Claimable,
    Settle,
    Verdict,
    decide,
    expired,
    finished,
    first,
)
from runonce.messages.rows import MessageRow, State, closed
from runonce.stores.columns import encode
from runonce.stores.protocols import Row
from runonce.transports.settlement import Complete, DeadLetter, Reschedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.messages.definition import Handler

NOW = datetime(2026, 1, 1, 3, tzinfo=UTC)
LEASE = 60
PLAIN = handling()
HOLD = handling(on_abandoned="hold")

ARRIVAL = Arrival("me", "my-host", NOW, "m-2", "print", LEASE, 3)
THEIRS = replace(
    first(PLAIN, "A-17", replace(ARRIVAL, holder="them", host="their-host", message_id="m-1")), checkpoint="3"
)


def read_of(row: MessageRow, *, silent_for: float) -> Row:
    """The row as it is read when it was last written so many seconds before, by the server's clock."""
    written = datetime(2020, 5, 5, tzinfo=UTC)  # another year: no client's clock takes part
    return Row("claim:1", encode(row), "etag", written, written + timedelta(seconds=silent_for))


def decided(
    row: MessageRow,
    *,
    silent_for: float = LEASE + RESOLUTION + 1,
    one: Handler = PLAIN,
    arrival: Arrival = ARRIVAL,
    reconcile: Callable[[MessageRow], bool | None] | None = None,
) -> Verdict:
    """What a delivery means for a row."""
    verdict = decide(one, row, read_of(row, silent_for=silent_for), arrival)
    if isinstance(verdict, Settle) and verdict.asks and reconcile is not None:
        return decide(one, row, read_of(row, silent_for=silent_for), arrival, reconcile(row))
    return verdict


def claimed(verdict: Verdict) -> MessageRow:
    """The row of a verdict that lets us handle the message."""
    assert isinstance(verdict, Claimable)
    return verdict.row


def ours(row: MessageRow) -> bool:
    """Whether a row says that the arrival has the message."""
    return (row.state, row.holder, row.host, row.started_at) == (State.CLAIMED, "me", "my-host", NOW)


def test_none_to_claimed() -> None:
    """1: a message nobody has seen is claimed with token 1, by whoever it came to."""
    row = first(PLAIN, "A-17", ARRIVAL)
    assert ours(row)
    assert (row.token, row.attempt, row.lease, row.fingerprint) == (1, 1, LEASE, "print")
    assert (row.message_id, row.attempts) == ("m-2", ())
    assert first(PLAIN, "A-17", replace(ARRIVAL, expires_at=NOW)).expires_at == NOW
    assert (row.handler, row.entity, row.key) == ("send_invoice", "invoices", "A-17")


def test_claimed_elsewhere_stays() -> None:
    """2: while its holder gives signs of life a claim stays as it is, and the message comes again later."""
    verdict = decided(THEIRS, silent_for=LEASE)
    assert verdict.row is None
    assert isinstance(verdict.settlement, Reschedule)
    assert 6.4 <= verdict.settlement.delay <= 9.6, "8 s for a message that came back three times"
    assert "their-host" in verdict.settlement.reason


@pytest.mark.parametrize(("silent_for", "ended"), [(61.0, False), (62.0, False), (62.001, True), (1e6, True)])
def test_a_lease_ends_by_the_servers_clock(silent_for: float, ended: bool) -> None:
    """A claim ends when Date less Timestamp passes its own lease and the header's resolution, and not before."""
    row = replace(THEIRS, lease=60)
    assert expired(row, read_of(row, silent_for=silent_for)) is ended


def test_the_holders_lease_counts() -> None:
    """How long a claim lasts is what its holder wrote, whatever the arriving host's settings say."""
    row = replace(THEIRS, lease=600)
    assert not expired(row, read_of(row, silent_for=100))
    assert claimed(decided(row, silent_for=603)).lease == LEASE


def test_claimed_to_claimed_by_another() -> None:
    """3: an ended claim is taken over with a higher token; checkpoint and counts survive, and the death is counted."""
    row = claimed(decided(THEIRS))
    assert ours(row)
    assert (row.token, row.attempt, row.abandoned, row.checkpoint) == (2, 2, 1, "3")


def test_claimed_to_done() -> None:
    """4: finishing keeps everything, and says until when the row must be kept; what it waited for is over."""
    row = finished(PLAIN, replace(THEIRS, reason="no luck", retry_at=NOW), State.DONE, NOW)
    kept = NOW + timedelta(days=30)
    assert row == replace(THEIRS, state=State.DONE, finished_at=NOW, expires_at=kept)


RELEASED = replace(
    THEIRS, state=State.RELEASED, failures=2, retry_at=NOW + timedelta(seconds=90), reason="no luck"
)


def test_released_waits_for_its_retry() -> None:
    """5: a released message that comes before its retry is due comes again when it is."""
    verdict = decided(RELEASED)
    assert verdict.row is None
    assert verdict.settlement == Reschedule(90.0, "its retry is due at 2026-01-01T03:01:30Z")


@pytest.mark.parametrize("early", [timedelta(0), EARLY, -timedelta(days=1)])
def test_released_to_claimed(early: timedelta) -> None:
    """6: once its retry is due, or all but, a released message is claimed; what it went through survives."""
    row = claimed(decided(replace(RELEASED, retry_at=NOW + early)))
    assert ours(row)
    assert (row.token, row.attempt, row.failures, row.abandoned) == (2, 2, 2, 0)
    assert (row.retry_at, row.reason) == (None, "")


def test_an_attempt_begins_with_nothing_of_the_last_one_s_end() -> None:
    """6: what ended the last attempt is kept among the attempts and nowhere else; everything but that end survives."""
    before = replace(
        RELEASED, retry_at=None, error="ValueError: no\n", finished_at=NOW, expires_at=NOW, progress={"a": 1}
    )
    assert claimed(decided(before)) == replace(
        before,
        state=State.CLAIMED,
        attempts=closed(before),
        reason="",
        error="",
        holder="me",
        token=2,
        attempt=2,
        message_id="m-2",
        host="my-host",
        started_at=NOW,
        finished_at=None,
        expires_at=None,
    )
    [kept] = closed(before)
    assert kept == {
        "attempt": "1",
        "outcome": "released",
        "host": "their-host",
        "started_at": "2026-01-01T03:00:00Z",
        "finished_at": "2026-01-01T03:00:00Z",
        "reason": "no luck",
        "error": "ValueError: no\n",
        "token": "1",
    }


def test_released_without_a_time_is_claimed_at_once() -> None:
    """6: a message that a stopping host gave back waits for nothing."""
    assert ours(claimed(decided(replace(RELEASED, retry_at=None))))


def test_failed_stays_failed() -> None:
    """7: a message that failed for good is dead-lettered each time it comes, with the reason it failed for."""
    failed = finished(PLAIN, THEIRS, State.FAILED, NOW, "no such customer")
    assert decided(failed) == Settle(DeadLetter("Failed", "no such customer"))


def test_held_to_unknown() -> None:
    """8: a held message whose host died is unknown, and no longer the dead host's to write."""
    verdict = decided(THEIRS, one=HOLD)
    assert verdict.row is not None
    assert (verdict.row.state, verdict.row.holder, verdict.row.expires_at) == (State.UNKNOWN, "me", None)
    assert isinstance(verdict.settlement, DeadLetter)
    assert verdict.settlement.reason == "Unknown"
    for said in ("send_invoice", "m-2", "their-host", "runonce dead-letters replay send_invoice"):
        assert said in verdict.settlement.description
    assert verdict.row.reason == verdict.settlement.description


def test_a_living_holder_is_not_asked_about() -> None:
    """8: a claim that is being worked on is not unknown, and no hook is asked."""
    verdict = decided(THEIRS, silent_for=1, one=HOLD, reconcile=lambda _: pytest.fail("asked"))
    assert isinstance(verdict.settlement, Reschedule)


def test_unknown_stays_unknown() -> None:
    """8: an unknown message leaves that state by nothing but a hook or a person."""
    unknown = replace(THEIRS, state=State.UNKNOWN)
    for answer in (None, lambda _: None, lambda _: "yes", lambda _: 1):
        verdict = decided(unknown, one=HOLD, reconcile=answer)  # type: ignore[arg-type]
        assert verdict.row is None
        assert isinstance(verdict.settlement, DeadLetter)
        assert verdict.settlement.reason == "Unknown"


@pytest.mark.parametrize("state", [State.CLAIMED, State.UNKNOWN])
def test_reconciled_to_done(state: State) -> None:
    """8: a hook that finds the effect makes the message done, without running it."""
    seen: list[MessageRow] = []

    def happened(row: MessageRow) -> bool:
        seen.append(row)
        return True

    verdict = decided(replace(THEIRS, state=state), one=HOLD, reconcile=happened)
    assert verdict.settlement == Complete()
    assert verdict.row is not None
    assert verdict.row.state is State.DONE
    assert verdict.row.reason == "reconciled: the effect had happened"
    assert verdict.row.expires_at == NOW + timedelta(days=30)
    assert [row.key for row in seen] == ["A-17"]


@pytest.mark.parametrize("state", [State.CLAIMED, State.UNKNOWN])
def test_reconciled_to_claimed(state: State) -> None:
    """8: a hook that finds no effect lets the message be handled."""
    row = claimed(decided(replace(THEIRS, state=state), one=HOLD, reconcile=lambda _: False))
    assert ours(row)
    assert row.token == 2


@pytest.mark.parametrize(
    ("one", "reconcile"), [(PLAIN, None), (HOLD, lambda _: False)], ids=["rerun", "hold"]
)
def test_a_message_that_kills_its_hosts_is_given_up(one: Handler, reconcile: Any) -> None:
    """3 to 7: after so many deaths the message itself may be what kills, so it fails, by either policy."""
    row = replace(THEIRS, abandoned=MAX_ABANDONED - 2)
    assert ours(claimed(decided(row, one=one, reconcile=reconcile)))
    verdict = decided(replace(row, abandoned=MAX_ABANDONED - 1), one=one, reconcile=reconcile)
    assert verdict.row is not None
    assert (verdict.row.state, verdict.row.holder) == (State.FAILED, "me")
    assert isinstance(verdict.settlement, DeadLetter)
    assert verdict.settlement.reason == "Abandoned"
    assert "m-2" in verdict.settlement.description
    assert (verdict.row.finished_at, verdict.row.reason) == (NOW, verdict.settlement.description)
    assert ours(
        claimed(decided(replace(row, abandoned=MAX_ABANDONED - 1, survived=1), one=one, reconcile=reconcile))
    )


def test_done_to_claimed_by_nothing() -> None:
    """9: a done message is a duplicate, however old, whoever asks; only an operator's replay reopens a claim."""
    done = finished(PLAIN, THEIRS, State.DONE, NOW)
    assert decided(done) == Settle(Complete(duplicate=True))
    assert decided(done, one=HOLD, reconcile=lambda _: False) == Settle(Complete(duplicate=True))


def test_a_replayed_claim_is_a_new_generation() -> None:
    """9: a row that an operator reopened is claimed with a higher token and another idempotency key."""
    reopened = replace(THEIRS, state=State.RELEASED, generation=1)
    row = claimed(decided(reopened))
    assert row.token == THEIRS.token + 1
    assert row.idempotency_key != THEIRS.idempotency_key


def test_what_is_unfinished_never_expires() -> None:
    """10: only done rows say when they may be purged, and claiming one again takes that back.

    A failed row is as old as its dead letter, which no broker need ever remove.
    """
    row = finished(PLAIN, THEIRS, State.DONE, NOW)
    assert row.expires_at is not None
    assert claimed(decided(replace(row, state=State.RELEASED, retry_at=None))).expires_at is None
    assert finished(PLAIN, THEIRS, State.FAILED, NOW).expires_at is None
    assert THEIRS.expires_at is None


@pytest.mark.parametrize("state", [state for state in State if state is not State.FAILED])
def test_another_body_under_the_same_key_is_refused(state: State) -> None:
    """Unless the message failed, a key that comes with another body is put aside visibly, and the row stays."""
    verdict = decided(replace(THEIRS, state=state), arrival=replace(ARRIVAL, fingerprint="other"))
    assert verdict.row is None
    assert isinstance(verdict.settlement, DeadLetter)
    assert verdict.settlement.reason == "KeyReused"
    for said in ("send_invoice", "m-2", "m-1", str(state), "a key of its own"):
        assert said in verdict.settlement.description
    assert "A-17" not in verdict.settlement.description


def test_another_body_after_a_failure_is_its_correction() -> None:
    """What failed is claimed again with the new body, as a new generation; with one that failed before it is not."""
    failed = replace(THEIRS, state=State.FAILED, checkpoint="{}", failures=3)
    corrected = replace(ARRIVAL, fingerprint="other")
    row = claimed(decided(failed, arrival=corrected))
    assert (row.generation, row.failures, row.checkpoint) == (1, 0, "")
    assert (row.fingerprint, row.superseded) == ("other", (THEIRS.fingerprint,))
    assert row.replays == ("2026-01-01T03:00:00Z",)
    again = decided(replace(row, state=State.FAILED))
    assert again.row is None
    assert isinstance(again.settlement, DeadLetter)
    assert again.settlement.reason == "KeyReused"
