"""The package's proxy in front of this test process's Azurite, as fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runonce.testing.proxy import StorageProxy

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def proxies(azurite: str) -> Iterator[StorageProxy]:
    """Proxies in front of this test process's Azurite; `proxy` hands them out reset."""
    with StorageProxy(azurite) as made:
        yield made


@pytest.fixture
def proxy(proxies: StorageProxy) -> Iterator[StorageProxy]:
    """The proxies, without a fault and with no request seen."""
    proxies.reset()
    yield proxies
    proxies.reset()
