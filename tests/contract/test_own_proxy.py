from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from runonce.settings import StorageConnection
from runonce.stores.azure.clients import make_client
from runonce.stores.azure.stores import azure_stores
from runonce.stores.protocols import Insert
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.stores.azure.connections import OwnConnections

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose network has a proxy, which is not there."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, NOBODY)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("behind_a_proxy")
def test_an_emulator_of_this_machine_is_asked_directly(azurite: str) -> None:
    """Leases, rows, requests and blobs reach it, whatever proxy the environment names; in a forked child too."""
    stores = azure_stores(fresh_settings(azurite))

    def use(name: str) -> None:
        assert stores.leases.acquire(name, name, 15) is not None
        stores.runs.commit("p", [Insert(name, {"n": 1})])
        stores.requests.send(name)
        stores.blobs.write(name, b"a", {}, etag=None, content_type="text/plain")

    use("parent")
    if hasattr(os, "fork"):
        assert in_a_child(lambda: use("child")) == 0
        assert stores.runs.get("p", "child") is not None


def in_a_child(work: Callable[[], None]) -> int:
    """The exit code of a forked child that does it."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("host", "by_proxy"), [("localhost", False), ("127.0.0.1", False), ("shop.example", True)]
)
def test_everything_else_goes_by_the_proxy(host: str, by_proxy: bool) -> None:
    """Only addresses of this machine are exempt."""
    endpoints = {service: f"http://{host}/{service}" for service in ("blob", "queue", "table")}
    made: list[OwnConnections] = []
    make_client(
        lambda *_, transport, **__: made.append(transport), StorageConnection(endpoints=endpoints), "blob", {}
    )
    (transport,) = made
    transport.open()
    assert transport.session.trust_env is by_proxy
