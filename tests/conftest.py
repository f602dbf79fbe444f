"""Fixtures that start the real thing once per test process, and give each test a namespace of its own."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from azure.core.pipeline.transport import RequestsTransport  # noqa: E402

from runonce.errors import ConflictError  # noqa: E402
from runonce.stores.azure.stores import azure_stores  # noqa: E402
from runonce.stores.azure.wire import Connections, Request  # noqa: E402
from runonce.stores.protocols import Insert, Replace  # noqa: E402
from tests.support.namespaces import fresh_settings  # noqa: E402
from tests.support.release import dist, shared, tools, wheel  # noqa: E402, F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

logging.getLogger("azure").setLevel(logging.WARNING)
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # in the background of a script; children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

LOGGERS = (None, "runonce", "runonce.hosts.discover", "azure", "azure.identity")
"""Those whose level a command sets, the root first."""
STORAGE = "RUNONCE_TESTS_STORAGE"
"""A connection string: of a storage that does something wrong, in the tests of these tests."""


def _launcher() -> Any:
    spec = importlib.util.spec_from_file_location("azurite_launcher", ROOT / "azurite" / "launcher.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """What a test has printed or logged is text that a worker process can send, half characters included."""
    report: Any = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end, so that no garbage collection, then or later, need look through it."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """A command sets levels, and puts its jobs' folder on the path, for its whole process; the next test is another."""
    levels = [(logger, logger.level) for logger in map(logging.getLogger, LOGGERS)]
    path = list(sys.path)
    yield
    sys.path[:] = path  # with hundreds of folders on it every import would look through them
    for logger, level in levels:
        if logger.level != level:  # setting it empties the cache of every logger
            logger.setLevel(level)


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """The connection string of a real Azurite of this test process's own, or of another storage that is to be tried."""
    if given := os.environ.get(STORAGE):
        yield given
        return
    launcher = _launcher()
    with launcher.start() as emulator:
        _heeds_conditions(emulator.connection_string)
        yield emulator.connection_string


@pytest.fixture(scope="session")
def postgresql_address() -> Iterator[str]:
    """The address of a real PostgreSQL of this test process's own."""
    from tests.support.postgresql import postgresql  # noqa: PLC0415 - with its client, which few tests need

    with postgresql() as address:
        yield address


@pytest.fixture(scope="session")
def redis_address() -> Iterator[str]:
    """The address of a real Redis of this test process's own."""
    from tests.support.redis_server import redis_server  # noqa: PLC0415 - with its client, which few tests need

    with redis_server() as address:
        yield address


def _heeds_conditions(connection_string: str) -> None:
    """Without conditional writes no test of a race says anything, so none is run."""
    made = fresh_settings(connection_string)
    runs = azure_stores(made).runs
    (stale,) = runs.commit(made.namespace, [Insert("a", {"n": 1})])
    runs.commit(made.namespace, [Replace("a", {"n": 2}, stale)])
    with pytest.raises(ConflictError):
        runs.commit(made.namespace, [Replace("a", {"n": 3}, stale)])


@pytest.fixture
def settings(azurite: str) -> Settings:
    """Settings of a namespace no other test uses, with the shortest lease there is."""
    return fresh_settings(azurite)


class Calls(RequestsTransport):
    """Counts the requests that go out, as "METHOD /path" texts."""

    def __init__(self) -> None:
        super().__init__(connection_timeout=3, read_timeout=10)
        self.made: list[str] = []
        self._ours = Connections(own_machine=True)

    def send(self, request: Any, **kwargs: Any) -> Any:
        self.made.append(f"{request.method} {request.url.split('devstoreaccount1', 1)[-1]}")
        return self._ours.send(request) if isinstance(request, Request) else super().send(request, **kwargs)

    def close(self) -> None:
        super().close()
        self._ours.close()


@pytest.fixture
def calls() -> Calls:
    """What `azure` sent."""
    return Calls()


@pytest.fixture
def azure(settings: Settings, calls: Calls) -> Stores:
    """Stores on the real Azurite; their requests are in `calls.made`."""
    return azure_stores(settings, transport=calls)
