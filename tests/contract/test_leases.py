from __future__ import annotations

import contextlib
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.kit import Kit, fresh_settings, memory_kit
from support.simulated import simulated_kit

from runonce.stores.azure.stores import azure_stores

DURATION = 15
MADE = {"memory": memory_kit, "simulated": simulated_kit}


@pytest.fixture(params=["memory", "simulated", "azurite", "postgresql", "redis"])
def kit(request: pytest.FixtureRequest) -> Kit:
    """Each store of leases in turn."""
    if request.param in MADE:
        return MADE[request.param]()
    if request.param == "azurite":
        return Kit(request.getfixturevalue("shared"), None)
    return Kit(request.getfixturevalue(f"shared_{request.param}"), None, term=1)


def a_holder() -> str:
    return str(uuid.uuid4())


def test_a_free_lease_is_granted(kit: Kit) -> None:
    """The first who asks is given the lease, on a lock that never existed before."""
    assert not kit.stores.leases.held(kit.name)
    assert kit.stores.leases.acquire(kit.name, a_holder(), DURATION)
    assert kit.stores.leases.held(kit.name)


def test_a_held_lease_is_refused(kit: Kit) -> None:
    """The second who asks is refused, as a value and not as an error."""
    assert kit.stores.leases.acquire(kit.name, a_holder(), DURATION)
    assert not kit.stores.leases.acquire(kit.name, a_holder(), DURATION)


def test_locks_are_independent(kit: Kit) -> None:
    """Holding one lock keeps nobody from another, whose name may contain a slash."""
    assert kit.stores.leases.acquire(f"{kit.name}/one", a_holder(), DURATION)
    assert kit.stores.leases.acquire(f"{kit.name}/two", a_holder(), DURATION)


def test_the_same_holder_acquires_again(kit: Kit) -> None:
    """Asking again as the same holder is granted, so an acquisition whose reply was lost can be repeated."""
    holder = a_holder()
    assert kit.stores.leases.acquire(kit.name, holder, DURATION)
    assert kit.stores.leases.acquire(kit.name, holder, DURATION)
    assert not kit.stores.leases.acquire(kit.name, a_holder(), DURATION)


def test_the_holder_renews(kit: Kit) -> None:
    """Only the holder's renewal succeeds, and a refused one changes nothing."""
    holder = a_holder()
    kit.stores.leases.acquire(kit.name, holder, DURATION)
    assert kit.stores.leases.renew(kit.name, holder)
    assert not kit.stores.leases.renew(kit.name, a_holder())
    assert kit.stores.leases.renew(kit.name, holder)


def test_a_lock_that_never_existed_cannot_be_renewed(kit: Kit) -> None:
    """Renewing a lock nobody ever took is refused, not an error."""
    assert not kit.stores.leases.renew(kit.name, a_holder())


def test_a_released_lease_is_free(kit: Kit) -> None:
    """After a release somebody else is granted the lease at once, and the former holder cannot renew it."""
    first, second = a_holder(), a_holder()
    kit.stores.leases.acquire(kit.name, first, DURATION)
    kit.stores.leases.release(kit.name, first)
    assert not kit.stores.leases.held(kit.name)
    assert not kit.stores.leases.renew(kit.name, first)
    assert kit.stores.leases.acquire(kit.name, second, DURATION)


def test_a_strangers_release_is_silent_and_without_effect(kit: Kit) -> None:
    """Releasing what somebody else holds raises nothing and frees nothing."""
    holder = a_holder()
    kit.stores.leases.acquire(kit.name, holder, DURATION)
    kit.stores.leases.release(kit.name, a_holder())
    assert kit.stores.leases.held(kit.name)
    assert kit.stores.leases.renew(kit.name, holder)


def test_a_release_can_be_repeated(kit: Kit) -> None:
    """A release whose reply was lost is simply made again, also when somebody else has the lease by then."""
    first, second = a_holder(), a_holder()
    kit.stores.leases.acquire(kit.name, first, DURATION)
    kit.stores.leases.release(kit.name, first)
    kit.stores.leases.release(kit.name, first)
    kit.stores.leases.acquire(kit.name, second, DURATION)
    kit.stores.leases.release(kit.name, first)
    assert kit.stores.leases.renew(kit.name, second)


def test_a_lock_that_never_existed_can_be_released(kit: Kit) -> None:
    """Releasing a lock nobody ever took is silent."""
    kit.stores.leases.release(kit.name, a_holder())
    assert not kit.stores.leases.held(kit.name)


def test_breaking_ends_a_lease_at_once(kit: Kit) -> None:
    """A broken lease is free that instant, whoever held it, and its holder's next renewal is refused."""
    first, second = a_holder(), a_holder()
    kit.stores.leases.acquire(kit.name, first, DURATION)
    assert kit.stores.leases.break_lease(kit.name)
    assert not kit.stores.leases.held(kit.name)
    assert not kit.stores.leases.renew(kit.name, first)
    assert kit.stores.leases.acquire(kit.name, second, DURATION)
    assert not kit.stores.leases.renew(kit.name, first)


def test_breaking_says_whether_anybody_held_the_lease(kit: Kit) -> None:
    """Breaking is False for a lock that never existed, is released, or is broken already."""
    holder = a_holder()
    assert not kit.stores.leases.break_lease(kit.name)
    kit.stores.leases.acquire(kit.name, holder, DURATION)
    kit.stores.leases.release(kit.name, holder)
    assert not kit.stores.leases.break_lease(kit.name)
    kit.stores.leases.acquire(kit.name, holder, DURATION)
    assert kit.stores.leases.break_lease(kit.name)
    assert not kit.stores.leases.break_lease(kit.name)


def test_breaking_a_holders_lease_ends_its_right_and_frees_nothing(kit: Kit) -> None:
    """Its renewal and release are refused, and nobody else is granted before its term ends."""
    holder, other = a_holder(), a_holder()
    kit.stores.leases.acquire(kit.name, holder, DURATION)
    assert not kit.stores.leases.break_lease(kit.name, other)
    assert kit.stores.leases.renew(kit.name, holder)
    assert kit.stores.leases.break_lease(kit.name, holder)
    assert not kit.stores.leases.renew(kit.name, holder)
    kit.stores.leases.release(kit.name, holder)
    assert kit.stores.leases.held(kit.name)
    assert not kit.stores.leases.acquire(kit.name, other, DURATION)
    assert not kit.stores.leases.break_lease(kit.name, holder)


def test_a_holders_broken_lease_ends_with_its_term() -> None:
    """The term is the one the holder began, so the lock is free when that would have ended."""
    kit = memory_kit()
    holder = a_holder()
    kit.stores.leases.acquire(kit.name, holder, DURATION)
    kit.clock.advance(DURATION - 1)
    kit.stores.leases.break_lease(kit.name, holder)
    assert not kit.stores.leases.acquire(kit.name, a_holder(), DURATION)
    kit.clock.advance(1)
    assert kit.stores.leases.acquire(kit.name, a_holder(), DURATION)


def test_of_many_who_ask_at_once_one_is_granted(kit: Kit) -> None:
    """Eight replicas that ask for a lock nobody ever took, at the same instant, see exactly one granted."""
    start = threading.Barrier(8)

    def ask(_: int) -> bool:
        start.wait()
        return kit.stores.leases.acquire(kit.name, a_holder(), DURATION) is not None

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(ask, range(8))) == [False] * 7 + [True]


def test_an_expired_lease_is_taken_over() -> None:
    """A lease nobody renews ends by itself, and its former holder can neither renew nor release the next one's."""
    kit, first, second = memory_kit(), a_holder(), a_holder()
    assert kit.clock is not None
    kit.stores.leases.acquire(kit.name, first, DURATION)
    kit.clock.advance(DURATION - 0.1)
    assert not kit.stores.leases.acquire(kit.name, second, DURATION)
    kit.clock.advance(0.1)
    assert kit.stores.leases.acquire(kit.name, second, DURATION)
    assert not kit.stores.leases.renew(kit.name, first)
    kit.stores.leases.release(kit.name, first)
    assert kit.stores.leases.renew(kit.name, second)


def test_an_expired_lease_is_renewed_while_nobody_took_it() -> None:
    """The store still renews a lease that has ended, as Azure does, so it is the caller who must not trust it."""
    kit, holder = memory_kit(), a_holder()
    assert kit.clock is not None
    kit.stores.leases.acquire(kit.name, holder, DURATION)
    kit.clock.advance(DURATION + 1)
    assert not kit.stores.leases.held(kit.name)
    assert kit.stores.leases.renew(kit.name, holder)
    assert not kit.stores.leases.acquire(kit.name, a_holder(), DURATION)


def test_the_first_use_makes_the_container(azurite: str) -> None:
    """A lease can be asked for, renewed, released, broken and looked at in an account that holds nothing yet."""
    uses = {
        "held": lambda leases: leases.held("lock") is False,
        "renew": lambda leases: leases.renew("lock", a_holder()) is False,
        "release": lambda leases: leases.release("lock", a_holder()) is None,
        "break": lambda leases: leases.break_lease("lock") is False,
        "break one": lambda leases: leases.break_lease("lock", a_holder()) is False,
        "acquire": lambda leases: leases.acquire("lock", a_holder(), DURATION) is not None,
    }
    for use, works in uses.items():
        assert works(azure_stores(fresh_settings(azurite)).leases), use


@pytest.mark.parametrize("operation", ["acquire", "renew", "release", "held", "break_lease"])
def test_each_operation_is_one_request(azurite: str, operation: str, calls) -> None:  # noqa: ANN001 - conftest's
    """Once the lock exists, each operation costs one storage call."""
    leases, holder = azure_stores(fresh_settings(azurite), transport=calls).leases, a_holder()
    leases.acquire("lock", holder, DURATION)
    calls.made.clear()
    arguments = {"acquire": ("lock", holder, DURATION), "held": ("lock",)}.get(operation, ("lock", holder))
    getattr(leases, operation)(*arguments)
    assert len(calls.made) == 1


def test_a_list_of_the_held_ones(kit: Kit) -> None:
    """One look tells which locks of a folder are held now: not the released ones, nor those of other folders."""
    leases, holders = kit.stores.leases, {name: a_holder() for name in ("a", "b", "c", "c/deep")}
    assert leases.held_in(f"{kit.name}/") == set()
    for name, holder in holders.items():
        leases.acquire(f"{kit.name}/{name}", holder, DURATION)
    leases.acquire(f"{kit.name}-other/a", a_holder(), DURATION)
    leases.release(f"{kit.name}/b", holders["b"])
    assert leases.held_in(f"{kit.name}/") == {f"{kit.name}/a", f"{kit.name}/c"}


def test_an_expired_lease_is_not_in_the_list(kit: Kit) -> None:
    """A lease whose holder died leaves the list when its term ends."""
    kit.stores.leases.acquire(f"{kit.name}/a", a_holder(), kit.term)
    assert kit.stores.leases.held_in(f"{kit.name}/") == {f"{kit.name}/a"}
    for _ in range(2):  # a term is longer than the kit waits at once
        with contextlib.suppress(pytest.fail.Exception):
            kit.until(lambda: None if kit.stores.leases.held_in(f"{kit.name}/") else True)
    assert kit.stores.leases.held_in(f"{kit.name}/") == set()
