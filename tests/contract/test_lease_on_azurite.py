from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

from runonce.clock import SystemClock
from runonce.execution.lease import Lease
from runonce.settings import LeaseTerms, Settings, StorageConnection
from runonce.stores.azure.stores import azure_stores
from runonce.testing.proxy import BUSY, DROP_REPLY, DROP_REQUEST, StorageProxy

if TYPE_CHECKING:
    from runonce.errors import LeaseLost
    from runonce.stores.protocols import LeaseStore, Stores

TERMS = LeaseTerms(duration=15, renewal=0.5, margin=2)
CLOCK = SystemClock()


def acquire(leases: LeaseStore, name: str, terms: LeaseTerms = TERMS) -> Lease:
    lease = Lease.acquire(leases, name, terms, CLOCK)
    assert lease is not None
    return lease


def a_lock() -> str:
    return f"t/{uuid.uuid4().hex}"


def test_a_lease_is_held_for_as_long_as_it_is_renewed(shared: Stores) -> None:
    """Past its 15 real seconds a renewed lease is still refused to others; an unrenewed one is taken over, for good.

    The only test that waits for a real lease to end; all that needs it is here.
    """
    leases = shared.leases
    kept, left, expired = a_lock(), a_lock(), a_lock()
    lost: list[LeaseLost] = []
    began = time.monotonic()
    renewed = acquire(leases, kept)
    abandoned = acquire(leases, left)
    old_holder, new_holder = str(uuid.uuid4()), str(uuid.uuid4())
    assert leases.acquire(expired, old_holder, 15)
    renewed.keep(lost.append)
    try:
        while (taken := Lease.acquire(leases, left, TERMS, CLOCK)) is None:
            assert not leases.acquire(kept, str(uuid.uuid4()), 15)
            assert time.monotonic() - began < 20, "the lease did not end"
            threading.Event().wait(0.25)
        took = time.monotonic() - began

        # The one that was left: its trust had ended before the store gave it away, and nothing revives it.
        assert took > 14.5
        assert abandoned.trusted_until < CLOCK.elapsed()
        assert not abandoned.held
        assert not leases.renew(left, abandoned.holder)
        abandoned.release()
        assert taken.held
        assert leases.renew(left, taken.holder)

        # One that ends, while nobody else wants it: the store renews it still, so trust must not hang on that.
        while leases.held(expired):  # it was taken a moment after the one that was left
            assert time.monotonic() - began < 30, "the lease did not end"
            threading.Event().wait(0.25)
        assert leases.renew(expired, old_holder)
        assert not leases.acquire(expired, new_holder, 15)

        # The one that was kept.
        assert renewed.held
        assert lost == []
        assert not leases.acquire(kept, str(uuid.uuid4()), 15)
    finally:
        renewed.release()
    assert leases.acquire(kept, str(uuid.uuid4()), 15)


def test_a_broken_lease_is_lost_at_the_next_renewal(shared: Stores) -> None:
    """When an operator breaks the lease, the run hears of it with the next renewal, and a contender is let in."""
    lock, told = a_lock(), threading.Event()
    lease = acquire(shared.leases, lock)
    lease.keep(lambda _: told.set())
    assert shared.leases.break_lease(lock)
    assert told.wait(5)
    assert not lease.held
    contender = acquire(shared.leases, lock)
    lease.release()
    assert shared.leases.renew(lock, contender.holder)


def test_an_outage_shorter_than_the_trust_loses_nothing(proxy: StorageProxy) -> None:
    """Renewals that are lost, turned away or unanswered for a while do not end a run."""
    leases = azure_stores(Settings("shared", StorageConnection(proxy.connection_string))).leases
    lock = a_lock()
    lost: list[LeaseLost] = []
    lease = acquire(leases, lock)
    before = lease.trusted_until
    proxy.reset()
    for fault in (DROP_REQUEST, DROP_REPLY, BUSY):
        proxy.blob.inject(fault, "comp=lease")
    lease.keep(lost.append)
    try:
        proxy.blob.wait_for(4)  # two in the first round, two in the second a pause later
        while lease.trusted_until == before:
            threading.Event().wait(0.01)
        assert lease.held
        assert lost == []
    finally:
        lease.release()


def test_a_lost_grant_is_found(proxy: StorageProxy) -> None:
    """An acquisition whose reply is lost on the way is ours all the same, at the price of a second call."""
    leases = azure_stores(Settings("shared", StorageConnection(proxy.connection_string))).leases
    lock = a_lock()
    acquire(leases, lock).release()  # so that the blob exists
    proxy.reset()
    proxy.blob.inject(DROP_REPLY, "comp=lease")
    lease = acquire(leases, lock)
    assert lease.held
    assert len(proxy.requests) == 2
    lease.release()
    assert not leases.held(lock)
