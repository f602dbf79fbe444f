"""What the contract suite runs against."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from support.kit import Kit, fresh_settings, memory_kit
from support.proxy import proxies, proxy
from support.simulated import simulated_kit

from runonce.settings import Settings, StorageConnection
from runonce.stores.azure.stores import azure_stores
from runonce.stores.protocols import MAX_TRANSACTION, Insert

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.stores.protocols import Stores

__all__ = ["proxies", "proxy"]

MADE = {"memory": memory_kit, "simulated": simulated_kit}
MANY = [f"row-{n:05d}" for n in range(1_050)]
"""Keys of more rows than a page holds."""


@pytest.fixture(scope="session")
def shared(azurite: str) -> Stores:
    """One set of stores on Azurite for all tests that use names of their own."""
    return azure_stores(Settings("shared", StorageConnection(azurite)))


@pytest.fixture(params=["memory", "simulated", "azurite"])
def kit(request: pytest.FixtureRequest) -> Kit:
    """Each store in turn."""
    if request.param in MADE:
        return MADE[request.param]()
    return Kit(request.getfixturevalue("shared"), None)


def _with_leases(address: str) -> Iterator[Stores]:
    nowhere = StorageConnection("UseDevelopmentStorage=true")
    with ExitStack() as closing:
        yield azure_stores(Settings("shared", nowhere, leases=address), closing=closing)


@pytest.fixture(scope="session")
def shared_postgresql(postgresql_address: str) -> Iterator[Stores]:
    """Stores with leases in a real PostgreSQL."""
    yield from _with_leases(postgresql_address)


@pytest.fixture(scope="session")
def shared_redis(redis_address: str) -> Iterator[Stores]:
    """Stores with leases in a real Redis."""
    yield from _with_leases(redis_address)


@pytest.fixture(params=["memory", "simulated", "azurite"])
def queue_kit(request: pytest.FixtureRequest) -> Kit:
    """Each store in turn, with a queue of its own, which does not exist yet."""
    if request.param in MADE:
        return MADE[request.param]()
    return Kit(azure_stores(fresh_settings(request.getfixturevalue("azurite"))), None)


def write_many(stores: Stores) -> None:
    """Rows with the keys MANY in the partition "many"."""
    for first in range(0, len(MANY), MAX_TRANSACTION):
        stores.runs.commit("many", [Insert(key, {"n": 1}) for key in MANY[first : first + MAX_TRANSACTION]])


@pytest.fixture(scope="session")
def many_on_azurite(shared: Stores) -> Stores:
    """The shared stores, with many rows."""
    write_many(shared)
    return shared


@pytest.fixture(params=["memory", "simulated", "azurite"])
def many(request: pytest.FixtureRequest) -> Stores:
    """Each store in turn, with many rows."""
    if request.param in MADE:
        stores = MADE[request.param]().stores
        write_many(stores)
        return stores
    made: Stores = request.getfixturevalue("many_on_azurite")
    return made
