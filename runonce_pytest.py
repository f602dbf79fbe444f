"""Fixtures for the tests of jobs and handlers; pytest finds them where runonce is installed.

Outside the package, so that pytest imports nothing of it until a test asks for one of them.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runonce.testing import Host, StorageProxy, Workbench

    class StartHost(Protocol):
        """Starts one more host, with these environment variables besides."""

        def __call__(self, **environ: str) -> Host: ...


@pytest.fixture
def workbench() -> Workbench:
    """A Workbench, which knows a job from its first run on."""
    from runonce.testing import Workbench  # noqa: PLC0415 - see the module

    return Workbench()


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """The connection string of a storage emulator of this test session's own, with its data in memory."""
    from runonce.hosts.emulators import launcher  # noqa: PLC0415 - see the module

    with launcher("azurite").start() as emulator:
        yield emulator.connection_string


@pytest.fixture
def servicebus(pytestconfig: pytest.Config) -> Iterator[str]:
    """The connection string of a local Service Bus of this test alone, with the entities of the jobs folder."""
    from runonce.hosts import emulators  # noqa: PLC0415 - see the module

    if missing := emulators.bus_missing():
        pytest.skip(missing)
    with emulators.bus_of(emulators.handlers(folder=pytestconfig.rootpath)) as connection_string:
        yield connection_string


@pytest.fixture
def chaos(azurite: str) -> Iterator[StorageProxy]:
    """A proxy in front of the emulator, which delays, loses, cuts, refuses or hangs what it is told to."""
    from runonce.testing import StorageProxy  # noqa: PLC0415 - see the module

    with StorageProxy(azurite) as proxy:
        yield proxy


@pytest.fixture
def host(
    azurite: str, pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartHost]:
    """Starts `runonce serve` as processes, with the emulator and a namespace of this test's own, and kills them after.

    The test's own process has the same settings, so that `enqueue` and `effects` reach them.
    """
    from runonce.testing import Host  # noqa: PLC0415 - see the module

    monkeypatch.setenv("RUNONCE_STORAGE", azurite)
    monkeypatch.setenv("RUNONCE_NAMESPACE", f"test-{uuid.uuid4().hex[:12]}")
    started: list[Host] = []

    def start(**environ: str) -> Host:
        started.append(Host(pytestconfig.rootpath, tmp_path / f"host-{len(started) + 1}.log", environ))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            one.kill()
