"""One process's parts: made once, when they are needed, and closed by who made them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from azure.core.pipeline.transport import RequestsTransport
from support.memory_transport import MemoryTransport

from runonce.errors import SettingsError
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime, check_transport
from runonce.messages.definition import handler
from runonce.settings import Settings, StorageConnection
from runonce.stores.azure.stores import azure_stores
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock, MemorySender

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = Settings("test", StorageConnection("UseDevelopmentStorage=true"))


def test_a_queue_whose_name_grows_too_long_with_the_namespace_is_refused() -> None:
    """The message has the handler, the whole name, the limit and what to do; without the namespace it fits."""
    take = handler(queue="q" * 40, name="take")(lambda _: None)
    with pytest.raises(
        SettingsError,
        match=f"'take': in namespace 'test' its queue is called '{'n' * 16}{'q' * 40}'.* over 55",
    ):
        check_transport(replace(SETTINGS, queue_prefix="n" * 16), take)
    check_transport(SETTINGS, take)


@pytest.mark.parametrize("end", ["requests", "requests-poison"])
def test_the_queue_of_the_jobs_requests_is_no_handlers(end: str) -> None:
    """On Storage queues a handler of that name would take what recovery asks for, so it is refused."""
    take = handler(queue=f"runonce-test-{end}", name="take")(lambda _: None)
    with pytest.raises(SettingsError, match=f"'take': 'runonce-test-{end}' is the queue of what"):
        check_transport(SETTINGS, take)
    check_transport(replace(SETTINGS, namespace="other"), take)


class Closing(MemorySender):
    """Notes that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Sending(MemoryTransport):
    """A transport whose senders are noted."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.made: list[Closing] = []

    def sender(self) -> Closing:  # type: ignore[override]
        self.made.append(Closing())
        return self.made[-1]


def test_it_closes_the_sender_it_made() -> None:
    """A sender that was opened for the process is closed with it, and is one for all that send."""
    clock = ManualClock()
    transport = Sending(clock)
    with Runtime(
        SETTINGS, found=Discovered(), stores=memory_stores(clock), clock=clock, transport=transport
    ) as made:
        assert made.sender is made.sender
        assert made.deliverer is made.deliverer
        assert [sender.closed for sender in transport.made] == [False]
    assert [sender.closed for sender in transport.made] == [True]


def test_it_opens_nothing_that_is_not_asked_for() -> None:
    """Without a message to send no sender is opened, neither at the beginning nor at the end."""
    clock = ManualClock()
    transport = Sending(clock)
    with Runtime(
        SETTINGS, found=Discovered(), stores=memory_stores(clock), clock=clock, transport=transport
    ) as made:
        assert made.dispatcher.jobs
    assert transport.made == []


def test_what_is_handed_in_stays_open() -> None:
    """A sender of somebody else's is theirs to close."""
    sender = Closing()
    with Runtime(SETTINGS, found=Discovered(), sender=sender) as made:
        assert made.sender is sender
    assert not sender.closed


def test_the_clients_of_storage_are_closed_too() -> None:
    """Every client that was made for the stores is closed: the queue's only when there was one."""
    closed: list[str] = []

    class Noting(RequestsTransport):
        def close(self) -> None:
            closed.append("client")
            super().close()

    with ExitStack() as closing:
        azure_stores(SETTINGS, closing=closing, transport=Noting())
        assert closed == []
    assert len(closed) == 3


def test_all_parts_are_of_one_process() -> None:
    """Runs and messages have one stop signal, one clock, one name of the host and the same stores."""
    clock = ManualClock()
    stores = memory_stores(clock)
    made = Runtime(
        SETTINGS, found=Discovered(), stores=stores, clock=clock, sender=MemorySender(), host="here"
    )
    assert made.dispatcher.stop is made.stop
    assert made.dispatcher.stores is stores
    assert (made.runs.host, made.claims.host, made.dispatcher.registry.host) == ("here", "here", "here")
    assert made.dispatcher.server_clock._clock is made.runs.clock is clock


def test_a_folder_that_was_named_goes_before_the_environments(tmp_path: Path) -> None:
    """`--jobs` counts for the jobs and for the settings; without it RUNONCE_JOBS does."""
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    environ = {"RUNONCE_STORAGE": "UseDevelopmentStorage=true", "RUNONCE_JOBS": str(tmp_path / "theirs")}
    named = Runtime(environ=environ)
    named.jobs_folder = str(tmp_path / "mine")
    assert named.settings.jobs_folder == str(tmp_path / "mine")
    assert Runtime(environ=environ).settings.jobs_folder == str(tmp_path / "theirs")
    assert (
        Runtime(environ={"RUNONCE_JOBS": str(tmp_path / "theirs")}).found.jobs == {}
    )  # without any other setting


def test_what_a_job_file_prints_is_no_commands_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes to stderr, so that stdout is the JSON or the table that was asked for."""
    (tmp_path / "loud.py").write_text("print('hello')\n", encoding="utf-8")
    assert Runtime(environ={"RUNONCE_JOBS": str(tmp_path)}).found.broken == []
    assert capsys.readouterr() == ("", "hello\n")


def test_storage_that_cannot_be_reached_so_is_said_before_the_first_call() -> None:
    """A connection string that the SDK cannot read names its setting and the remedy."""
    settings = Settings("test", StorageConnection("nonsense", setting="RUNONCE_STORAGE"))
    with pytest.raises(SettingsError, match="RUNONCE_STORAGE is not a usable connection string"):
        _ = Runtime(settings, found=Discovered()).stores
