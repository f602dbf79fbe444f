from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.clock import SteppedClock

from runonce.errors import LeaseLost, StoreError, StoreUnavailableError
from runonce.execution.lease import (
    DISCONNECTED,
    KEEPER_ENDED,
    PAUSE,
    STALLED,
    STARVED,
    STARVING,
    TRIES,
    UNRENEWED,
    Lease,
)
from runonce.settings import LeaseTerms
from runonce.stores.memory import MemoryLeases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TERMS = LeaseTerms(duration=45, renewal=20, margin=5)
TRUST = 40.0
"""Seconds of trust in a lease of these terms, from the start of the call that got it."""
LOCK = "test/nightly"


class FaultyLeases(MemoryLeases):
    """Leases in memory whose next calls can be planned to fail, and which note every call."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__(clock)
        self.calls: list[str] = []
        self.plan: dict[str, deque[Callable[[Callable[[], Any]], Any]]] = defaultdict(deque)

    def _do(self, operation: str, call: Callable[[], Any]) -> Any:
        self.calls.append(operation)
        planned = self.plan[operation]
        return planned.popleft()(call) if planned else call()

    def acquire(self, name: str, holder: str, duration: int) -> Any:
        return self._do("acquire", lambda: super(FaultyLeases, self).acquire(name, holder, duration))

    def renew(self, name: str, holder: str) -> bool:
        return bool(self._do("renew", lambda: super(FaultyLeases, self).renew(name, holder)))

    def release(self, name: str, holder: str) -> None:
        self._do("release", lambda: super(FaultyLeases, self).release(name, holder))


def unreachable(_: Callable[[], Any]) -> Any:
    """The request is lost."""
    raise StoreUnavailableError


def lost_reply(call: Callable[[], Any]) -> Any:
    """The request is carried out and its reply is lost."""
    call()
    raise StoreUnavailableError


def forbidden(_: Callable[[], Any]) -> Any:
    """The request is refused for a reason that says nothing about who holds the lease."""
    raise StoreError


class Bench:
    """A clock, a faulty store, and whatever leases a test made, which are released at its end."""

    def __init__(self) -> None:
        self.clock = SteppedClock(waiters=2)  # who renews, and who watches
        self.store = FaultyLeases(self.clock)
        self.leases: list[Lease] = []
        self.lost: list[LeaseLost] = []
        self.told = threading.Event()

    def acquire(self) -> Lease:
        lease = Lease.acquire(self.store, LOCK, TERMS, self.clock)
        assert lease is not None
        self.leases.append(lease)
        return lease

    def kept(self) -> Lease:
        lease = self.acquire()
        lease.keep(self.on_lost)
        self.clock.settle()
        return lease

    def on_lost(self, cause: LeaseLost) -> None:
        self.lost.append(cause)
        self.told.set()

    def slow(self, seconds: float) -> Callable[[Callable[[], Any]], Any]:
        """The request is carried out at once and its reply takes so long."""

        def step(call: Callable[[], Any]) -> Any:
            answer = call()
            self.clock.advance(seconds)
            return answer

        return step

    def slow_failure(self, seconds: float) -> Callable[[Callable[[], Any]], Any]:
        """No answer, and it takes so long to know."""

        def step(_: Callable[[], Any]) -> Any:
            self.clock.advance(seconds)
            raise StoreUnavailableError

        return step

    @property
    def renewals(self) -> int:
        return self.store.calls.count("renew")


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    for lease in made.leases:
        lease.release()


def test_each_acquisition_is_a_holder_of_its_own(bench: Bench) -> None:
    """Two acquisitions by one process are two holders, so the second is refused."""
    bench.acquire()
    assert Lease.acquire(bench.store, LOCK, TERMS, bench.clock) is None


def test_a_refused_lease_is_none_after_one_call(bench: Bench) -> None:
    """Not being given the lease is a value, and costs one call."""
    bench.store.acquire(LOCK, "somebody else", 45)
    bench.store.calls.clear()
    assert Lease.acquire(bench.store, LOCK, TERMS, bench.clock) is None
    assert bench.store.calls == ["acquire"]


def test_trust_ends_a_margin_before_the_lease(bench: Bench) -> None:
    """Without renewal the lease is believed for its duration less the margin, and not an instant longer."""
    lease = bench.acquire()
    bench.clock.advance(TRUST - 0.001)
    assert lease.held
    lease.check()
    bench.clock.advance(0.001)
    assert not lease.held
    with pytest.raises(LeaseLost, match=rf"{LOCK} is lost: its trusted time ran out"):
        lease.check()
    assert not bench.store.acquire(
        LOCK, "somebody else", 45
    )  # the store would still refuse: that is the margin


def test_trust_counts_from_the_start_of_the_call(bench: Bench) -> None:
    """An acquisition that took 8 seconds is trusted 8 seconds less."""
    bench.store.plan["acquire"].append(bench.slow(8))
    lease = bench.acquire()
    assert lease.trusted_until == TRUST
    assert bench.clock.elapsed() == 8


def test_an_acquisition_slower_than_its_trust_is_never_held(bench: Bench) -> None:
    """A grant that arrives after its trust has ended is worth nothing from the first instant."""
    bench.store.plan["acquire"].append(bench.slow(TRUST))
    assert not bench.acquire().held


def test_a_lost_acquisition_is_asked_for_again_as_the_same_holder(bench: Bench) -> None:
    """When the reply to the grant is lost, asking again finds that the lease is ours, trusted from the first call."""

    def lost_late(call: Callable[[], Any]) -> Any:
        call()
        bench.clock.advance(4)
        raise StoreUnavailableError

    bench.store.plan["acquire"].append(lost_late)
    lease = bench.acquire()
    assert bench.store.calls == ["acquire", "acquire"]
    assert lease.trusted_until == TRUST
    assert lease.held


def test_a_lost_acquisition_that_somebody_else_won_is_refused(bench: Bench) -> None:
    """When the request itself was lost and somebody else was faster, asking again says so."""

    def overtaken(_: Callable[[], Any]) -> Any:
        super(FaultyLeases, bench.store).acquire(LOCK, "somebody else", 45)
        raise StoreUnavailableError

    bench.store.plan["acquire"].append(overtaken)
    assert Lease.acquire(bench.store, LOCK, TERMS, bench.clock) is None


def test_an_unreachable_store_raises(bench: Bench) -> None:
    """Two calls without an answer are an error, for the caller must not take them for a refusal."""
    bench.store.plan["acquire"].extend([unreachable, unreachable])
    with pytest.raises(StoreUnavailableError):
        Lease.acquire(bench.store, LOCK, TERMS, bench.clock)
    assert bench.store.calls[:2] == ["acquire", "acquire"]


def test_a_lease_granted_after_its_caller_gave_up_is_given_back(bench: Bench) -> None:
    """Both replies are lost and the grant stands: it is released as soon as the store answers again."""
    released = threading.Event()

    def then_released(call: Callable[[], Any]) -> Any:
        call()
        released.set()

    bench.store.plan["acquire"].extend([lost_reply, lost_reply])
    bench.store.plan["release"].extend([unreachable, then_released])
    with pytest.raises(StoreUnavailableError):
        Lease.acquire(bench.store, LOCK, TERMS, bench.clock)
    bench.clock.settle(1)
    assert bench.store.held(LOCK)
    bench.clock.advance(PAUSE)
    assert released.wait(10)
    assert not bench.store.held(LOCK)


def test_a_run_is_told_of_its_lost_lease_while_a_renewal_is_stuck(bench: Bench) -> None:
    """A call that does not return keeps nobody from saying "lost" at the instant trust ends."""
    stuck, go_on = threading.Event(), threading.Event()

    def hang(_: Callable[[], Any]) -> Any:
        stuck.set()
        go_on.wait(10)
        raise StoreUnavailableError

    bench.store.plan["renew"].append(hang)
    lease = bench.kept()
    bench.clock.advance(TERMS.renewal)
    assert stuck.wait(10)
    bench.clock.settle(1)
    bench.clock.advance(TRUST - TERMS.renewal)
    assert bench.told.wait(10)
    assert not lease.held
    go_on.set()


def test_a_lease_knows_the_servers_time(bench: Bench) -> None:
    """It is the second the server named, the one that may have passed there, and what passed here since."""
    server = bench.clock.now()
    lease = bench.acquire()
    bench.clock.advance(7.5)
    assert lease.server_now() == server.replace(microsecond=0) + timedelta(seconds=8.5)


def test_a_forbidden_acquisition_raises_at_once(bench: Bench) -> None:
    """A refusal that trying again will not change is not tried again."""
    bench.store.plan["acquire"].append(forbidden)
    with pytest.raises(StoreError):
        Lease.acquire(bench.store, LOCK, TERMS, bench.clock)
    assert bench.store.calls == ["acquire"]


def test_a_kept_lease_is_renewed_in_time(bench: Bench) -> None:
    """A kept lease is renewed every renewal interval and held far beyond its duration."""
    lease = bench.kept()
    for n in range(1, 11):
        bench.clock.step(19.9)
        assert bench.renewals == n - 1
        bench.clock.step(0.1)
        assert bench.renewals == n
    assert lease.held
    assert lease.trusted_until == 200 + TRUST
    assert bench.lost == []


def test_a_lease_is_not_renewed_before_it_is_kept(bench: Bench) -> None:
    """Acquiring alone renews nothing: a process that dies before its claim leaves a lease that ends."""
    bench.acquire()
    bench.clock.advance(100)
    assert bench.renewals == 0


def test_a_slow_renewal_extends_trust_from_its_start(bench: Bench) -> None:
    """A renewal that took 10 s, and succeeded, is trusted from when it was sent."""
    lease = bench.kept()
    bench.store.plan["renew"].append(bench.slow(10))
    bench.clock.step(20)
    assert bench.clock.elapsed() == 30
    assert lease.trusted_until == 20 + TRUST


def test_the_next_renewal_is_due_from_the_start_of_the_last(bench: Bench) -> None:
    """After a slow renewal the next one comes no later than it would have come."""
    bench.kept()
    bench.store.plan["renew"].append(bench.slow(10))
    bench.clock.step(20)
    bench.clock.step(9.9)
    assert bench.renewals == 1
    bench.clock.step(0.1)
    assert bench.renewals == 2


def test_a_renewal_that_arrives_after_trust_ended_is_worth_nothing(bench: Bench) -> None:
    """A renewal answered with success only after the trust had ended does not bring it back: the lease is lost."""
    lease = bench.kept()
    bench.store.plan["renew"].append(bench.slow(TRUST - 20))
    bench.clock.advance(20)
    assert bench.told.wait(5)
    assert not lease.held
    assert super(FaultyLeases, bench.store).held(LOCK)  # the store did renew it
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_refused_renewal_is_loss_at_once(bench: Bench) -> None:
    """When the store says somebody else has it, the run is told that instant, long before trust would end."""
    lease = bench.kept()
    bench.store.break_lease(LOCK)
    bench.clock.advance(20)
    assert bench.told.wait(5)
    assert bench.clock.elapsed() == 20
    assert not lease.held
    assert "the store says it is no longer ours" in str(bench.lost[0])
    with pytest.raises(LeaseLost, match="no longer ours"):
        lease.check()


def test_a_failed_renewal_is_tried_again(bench: Bench) -> None:
    """A renewal without an answer is made again at once, and nothing is lost."""
    lease = bench.kept()
    bench.store.plan["renew"].append(unreachable)
    bench.clock.step(20)
    assert bench.renewals == 2
    assert lease.trusted_until == 20 + TRUST
    assert bench.lost == []


def test_a_renewal_whose_reply_was_lost_is_repeated(bench: Bench) -> None:
    """A renewal that was carried out and whose reply was lost is made again, and trusted from the second call."""

    def lost_late(call: Callable[[], Any]) -> Any:
        call()
        bench.clock.advance(4)
        raise StoreUnavailableError

    lease = bench.kept()
    bench.store.plan["renew"].append(lost_late)
    bench.clock.step(20)
    assert bench.renewals == 2
    assert lease.trusted_until == 24 + TRUST


def test_a_round_of_renewal_has_a_bounded_number_of_calls(bench: Bench) -> None:
    """A round makes two calls, and the next round comes a pause later, not a renewal interval later."""
    lease = bench.kept()
    bench.store.plan["renew"].extend([unreachable] * TRIES)
    bench.clock.step(20)
    assert bench.renewals == TRIES
    bench.clock.step(PAUSE)
    assert bench.renewals == TRIES + 1
    assert lease.trusted_until == 20 + PAUSE + TRUST


@pytest.mark.parametrize("fault", [unreachable, forbidden], ids=["no answer", "403"])
def test_failures_are_retried_until_trust_ends_and_then_lose(bench: Bench, fault: object) -> None:
    """While the store does not say who holds the lease it stays held up to its deadline, then it is lost, once."""
    lease = bench.kept()
    bench.store.plan["renew"].extend([fault] * 1000)  # type: ignore[list-item]
    bench.clock.step(20)
    for _ in range(19):
        bench.clock.step(PAUSE)
        assert lease.held
        assert bench.lost == []
    bench.clock.advance(PAUSE)
    assert bench.told.wait(5)
    assert bench.clock.elapsed() == TRUST
    assert not lease.held
    assert bench.renewals == 20 * TRIES
    assert "its trusted time ran out before a renewal succeeded" in str(bench.lost[0])


def test_no_renewal_begins_after_trust_has_ended(bench: Bench) -> None:
    """A call that hung past the deadline is the last one, for a later one could revive a lease we do not own."""
    bench.kept()
    bench.store.plan["renew"].append(bench.slow_failure(30))
    bench.clock.advance(20)
    assert bench.told.wait(5)
    assert bench.renewals == 1


def test_a_process_that_slept_loses_its_lease(bench: Bench) -> None:
    """After a suspension longer than the trust nothing is renewed, although the store would renew it."""
    lease = bench.kept()
    bench.clock.advance(300)
    assert not lease.held
    assert bench.told.wait(5)
    assert bench.renewals == 0


def test_trust_never_comes_back(bench: Bench) -> None:
    """Once a check has found the trust ended, no renewal and no move of the clock makes the lease held again."""
    lease = bench.acquire()
    bench.clock.advance(TRUST)
    with pytest.raises(LeaseLost):
        lease.check()
    lease.keep(bench.on_lost)
    bench.clock.advance(1)
    lease._trusted_until = bench.clock.elapsed() + 100  # as if a renewal had slipped through
    assert not lease.held
    with pytest.raises(LeaseLost):
        lease.check()


def test_the_loss_is_told_once(bench: Bench) -> None:
    """However many find out that the lease is lost, and however often, the run is told once."""
    lease = bench.kept()
    start = threading.Barrier(9)

    def ask() -> None:
        start.wait()
        for _ in range(50):
            with pytest.raises(LeaseLost):
                lease.check()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    bench.clock.advance(TRUST)
    start.wait()
    for thread in threads:
        thread.join()
    assert bench.told.wait(5)
    lease.release()
    assert len(bench.lost) == 1


def test_every_check_raises_an_exception_of_its_own(bench: Bench) -> None:
    """Two threads that are told of the loss do not share one exception, whose traceback would be both's."""
    lease = bench.acquire()
    bench.clock.advance(TRUST)
    raised = []
    for _ in range(2):
        with pytest.raises(LeaseLost) as lost:
            lease.check()
        raised.append(lost.value)
    assert raised[0] is not raised[1]
    assert str(raised[0]) == str(raised[1])


def test_a_wedged_run_loses_its_lease(bench: Bench) -> None:
    """After `renew_until` the lease is renewed no more, ends by itself, and the run is told when trust ends."""
    lease = bench.kept()
    lease.renew_until(30)
    bench.clock.step(20)
    assert bench.renewals == 1
    bench.clock.step(20)  # 40: past renew_until
    assert bench.renewals == 1
    assert lease.held
    assert bench.lost == []
    bench.clock.advance(20)  # 60: trust of the renewal at 20 ends
    assert bench.told.wait(5)
    assert bench.renewals == 1
    bench.clock.advance(5)
    assert bench.store.acquire(LOCK, "somebody else", 45)


def test_a_release_frees_the_lock_and_ends_renewal(bench: Bench) -> None:
    """After a release somebody else is granted the lease, and no renewal follows, however time goes on."""
    lease = bench.kept()
    bench.clock.step(20)
    lease.release()
    assert bench.store.calls == ["acquire", "renew", "release"]
    assert bench.store.acquire(LOCK, "somebody else", 45)
    bench.clock.advance(1000)
    assert bench.renewals == 1
    assert bench.lost == []


def test_a_released_lease_is_not_held(bench: Bench) -> None:
    """From the instant the release is sent nothing can be written under the lease any more."""
    lease = bench.kept()
    seen = []

    def look(call: Callable[[], Any]) -> Any:
        seen.append(lease.held)
        return call()

    bench.store.plan["release"].append(look)
    lease.release()
    assert seen == [False]
    assert not lease.held
    with pytest.raises(LeaseLost, match="was released"):
        lease.check()


def test_a_release_is_conditional(bench: Bench) -> None:
    """Releasing a lease that somebody else has taken over leaves it theirs."""
    lease = bench.acquire()
    bench.clock.advance(46)
    assert bench.store.acquire(LOCK, "somebody else", 45)
    lease.release()
    assert bench.store.renew(LOCK, "somebody else")


def test_a_second_release_does_nothing(bench: Bench) -> None:
    """Releasing twice makes one call."""
    lease = bench.kept()
    lease.release()
    lease.release()
    assert bench.store.calls.count("release") == 1


def test_a_lost_lease_is_not_released(bench: Bench) -> None:
    """What is lost is somebody else's affair: releasing it makes no call and raises nothing."""
    lease = bench.kept()
    bench.store.break_lease(LOCK)
    bench.clock.advance(20)
    assert bench.told.wait(5)
    lease.release()
    assert "release" not in bench.store.calls


@pytest.mark.parametrize(
    "fault", [unreachable, lost_reply, forbidden], ids=["no answer", "lost reply", "403"]
)
def test_a_failed_release_is_logged_and_not_raised(
    bench: Bench, fault: object, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that does not answer a release costs one call and one warning: the lease ends by itself."""
    lease = bench.kept()
    bench.store.plan["release"].append(fault)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "runonce.execution.lease"):
        lease.release()
    assert "not released, it ends by itself in 45 s" in caplog.text
    assert bench.store.calls.count("release") == 1
    assert not lease.held


def test_a_release_waits_for_the_renewal_under_way(bench: Bench) -> None:
    """A renewal that is being made when the run ends is over before the release, and does not undo it."""
    lease = bench.kept()
    renewing, go_on = threading.Event(), threading.Event()

    def paused(call: Callable[[], Any]) -> Any:
        renewing.set()
        go_on.wait(5)
        return call()

    bench.store.plan["renew"].append(paused)
    bench.clock.advance(20)
    assert renewing.wait(5)
    releasing = threading.Thread(target=lease.release)
    releasing.start()
    go_on.set()
    releasing.join(5)
    assert bench.store.calls == ["acquire", "renew", "release"]
    assert not bench.store.held(LOCK)


def test_a_loss_while_being_released_is_not_told(bench: Bench) -> None:
    """A run that has ended is not told of a loss that is found out while its lease is released."""
    lease = bench.kept()
    renewing, go_on = threading.Event(), threading.Event()

    def paused(_: Callable[[], Any]) -> Any:
        renewing.set()
        go_on.wait(5)
        return False

    bench.store.plan["renew"].append(paused)
    bench.clock.advance(20)
    assert renewing.wait(5)
    releasing = threading.Thread(target=lease.release)
    releasing.start()
    assert lease._closed.wait(5)
    go_on.set()
    releasing.join(5)
    assert bench.lost == []


def test_the_renewing_thread_never_outlives_its_process(bench: Bench) -> None:
    """The renewal is a daemon thread named after the lock: it holds up no exit."""
    lease = bench.kept()
    thread = lease._thread
    assert thread is not None
    assert thread.daemon
    assert thread.name == f"runonce-renew-{LOCK}"
    lease.release()
    assert not thread.is_alive()


def test_a_starved_renewal_says_so(bench: Bench) -> None:
    """Where the threads that renew did not get to run, the lease is lost for that reason and not by a silent store."""
    lease = bench.kept()
    bench.clock.advance(TRUST + 8)
    assert bench.told.wait(10)
    assert "nothing else could run meanwhile" in str(bench.lost[0])
    assert not lease.held


# -- what is said, and the last instant of each limit ----------------------------------------------------------


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_loss_says_whose_lease_and_why(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The run and the log have the lock and the reason, the run the remedy too."""
    bench.kept()
    bench.store.break_lease(LOCK)
    bench.clock.advance(20)
    assert bench.told.wait(5)
    why = "the store says it is no longer ours"
    assert str(bench.lost[0]) == f"The lease on {LOCK} is lost: {why}. Write nothing more."
    assert said(caplog) == [f"lease {LOCK}: lost, {why}"]


def test_every_failed_call_is_logged_with_its_error(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A renewal that is tried again, and a release that is not, name the lock and what the store said."""

    def refused(_: Callable[[], Any]) -> Any:
        raise StoreUnavailableError("no route")

    lease = bench.kept()
    bench.store.plan["renew"].append(refused)
    bench.store.plan["release"].append(refused)
    bench.clock.step(20)
    lease.release()
    assert said(caplog) == [
        f"lease {LOCK}: renewal failed, trying again: no route",
        f"lease {LOCK}: not released, it ends by itself in 45 s: no route",
    ]


def test_a_renewal_that_comes_late_is_measured(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Over two seconds it is said with the remedy; the longest of them is kept."""
    lease = bench.kept()
    assert lease.renewed_late == 0
    bench.clock.step(20 + STARVED)
    assert (lease.renewed_late, said(caplog)) == (STARVED, [])
    bench.clock.step(20 + 3)
    assert said(caplog) == [f"lease {LOCK}: {STARVING % 3}"]
    bench.clock.step(20)
    assert (lease.renewed_late, bench.renewals) == (3, 3)


def test_a_loss_up_to_two_seconds_late_is_the_stores(bench: Bench) -> None:
    """Only beyond that the process itself is named as what kept the lease from being renewed."""
    bench.kept()
    bench.clock.advance(TRUST + STARVED)
    assert bench.told.wait(10)
    assert str(bench.lost[0]).startswith(f"The lease on {LOCK} is lost: {UNRENEWED}")


def test_nothing_is_renewed_from_the_instant_it_is_to_lapse(bench: Bench) -> None:
    """A renewal that is due just then is not made."""
    lease = bench.kept()
    lease.renew_until(TERMS.renewal)
    bench.clock.step(TERMS.renewal)
    assert bench.renewals == 0


def test_a_lease_tells_for_how_long_its_time_is_in_doubt(bench: Bench) -> None:
    """As long as the call took that acquired it; the server's time goes by when that call was made."""
    bench.clock.advance(100)
    server = bench.clock.now()
    bench.store.plan["acquire"].append(bench.slow(8))
    lease = bench.acquire()
    assert lease.doubt == timedelta(seconds=8)
    assert lease.server_now() - server == timedelta(seconds=9)


def test_what_may_have_been_granted_is_given_back_until_it_has_ended_by_itself(bench: Bench) -> None:
    """Once in a pause, for as long as it may last: after that there is nothing to release."""
    bench.store.plan["acquire"].extend([lost_reply, lost_reply])
    bench.store.plan["release"].extend([unreachable] * 100)
    others = set(threading.enumerate())
    with pytest.raises(StoreUnavailableError):
        Lease.acquire(bench.store, LOCK, TERMS, bench.clock)
    bench.clock.settle(1)
    begun = set(threading.enumerate()) - others
    [thread] = [each for each in begun if each.name == f"runonce-give-back-{LOCK}"]
    for _ in range(TERMS.duration - 1):
        bench.clock.advance(PAUSE)
        bench.clock.settle(1)
    bench.clock.advance(PAUSE)
    thread.join(10)
    assert bench.store.calls.count("release") == TERMS.duration


def test_who_watches_sleeps_until_trust_ends(bench: Bench) -> None:
    """It has a name by which a list of threads shows whose it is."""
    bench.kept()
    assert max(bench.clock._until.values()) == TRUST
    assert f"runonce-watch-{LOCK}" in [thread.name for thread in threading.enumerate()]


class OtherProcess:
    """A process that renews: how long its lease is trusted, whether it saw a stall, what progress it was told of."""

    def __init__(self, *, stalled: bool) -> None:
        self.trusted_until = TRUST
        self.stalled = stalled
        self.told: list[float] = []

    def progress(self, elapsed: float) -> None:
        self.told.append(elapsed)

    def close(self) -> bool:
        return True


@pytest.mark.parametrize(("stalled", "why"), [(True, STALLED), (False, KEEPER_ENDED)])
def test_a_lease_that_another_process_renews_is_lost_with_it(
    bench: Bench, *, stalled: bool, why: str
) -> None:
    """Its trust is that process's, looked at once in a pause; whether the job stalled or the process ended is said."""
    bench.clock.waiters = 1
    keeper = OtherProcess(stalled=stalled)
    lease = bench.acquire()
    lease.keep(bench.on_lost, keeper)  # type: ignore[arg-type]
    bench.clock.settle()
    assert list(bench.clock._until.values()) == [PAUSE]
    assert lease.held
    assert keeper.told == [0]
    keeper.trusted_until = 2 * PAUSE
    bench.clock.step(PAUSE)
    assert bench.lost == []
    bench.clock.advance(PAUSE)
    assert bench.told.wait(5)
    assert str(bench.lost[0]).startswith(f"The lease on {LOCK} is lost: {why}")
    assert bench.renewals == 0


class Sessions(FaultyLeases):
    """Leases that end with their connection, as a database's locks do."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__(clock)
        self.over: set[tuple[str, str]] = set()

    def gone(self, name: str, holder: str) -> bool:
        return (name, holder) in self.over

    def orphaned(self, folder: str) -> list[str]:
        raise AssertionError(folder)  # that is for recovery to ask


def test_a_lease_that_ends_with_its_connection_is_lost_with_it(bench: Bench) -> None:
    """Where the store can tell it is asked once in a pause, and the run hears of it long before trust would end."""
    store = Sessions(bench.clock)
    bench.store = store
    lease = bench.kept()
    assert min(bench.clock._until.values()) == PAUSE
    bench.clock.step(PAUSE)
    assert bench.lost == []
    store.over.add((LOCK, lease.holder))
    bench.clock.advance(PAUSE)
    assert bench.told.wait(5)
    assert str(bench.lost[0]).startswith(f"The lease on {LOCK} is lost: {DISCONNECTED}")
    assert not lease.held


def test_a_process_goes_on_with_what_another_has_acquired(bench: Bench) -> None:
    """Under the same holder, and for no longer than that one trusted it."""
    acquired = bench.acquire()
    lease = Lease(bench.store, LOCK, TERMS, bench.clock)
    lease.resume(acquired.holder, acquired.trusted_until)
    assert (lease.holder, lease.trusted_until) == (acquired.holder, TRUST)


def test_a_round_of_renewal_says_whether_the_lease_is_renewed(bench: Bench) -> None:
    """It is not where trust has ended, at its last instant too, or ends before the answer, or the store refuses."""
    lease = bench.acquire()
    assert lease._renewal_round()
    bench.clock.advance(TRUST)
    assert not lease._renewal_round()
    assert bench.renewals == 1
    lease.resume(lease.holder, bench.clock.elapsed() + 1)
    bench.store.plan["renew"].append(bench.slow(1))
    assert not lease._renewal_round()
    lease.resume(lease.holder, bench.clock.elapsed() + 1)
    bench.store.break_lease(LOCK)
    assert not lease._renewal_round()
