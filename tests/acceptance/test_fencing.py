"""The recipe of docs/fencing.md on a real PostgreSQL: an older holder commits nothing, wherever it was paused."""

from __future__ import annotations

import os
import runpy
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from support.replica import START, Replicas

from runonce.errors import Fenced
from runonce.runs.operate import ask
from runonce.runs.rows import Outcome
from tests.acceptance.test_signals import config_of, run_is
from tests.support.pages import blocks
from tests.support.postgresql import postgresql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from runonce.settings import Settings

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGSTOP")

SHOWN = blocks("docs/fencing.md")
CHARGE = "INSERT INTO charges (invoice, amount, token) VALUES (%s, 1, %s)"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """One server for all tests of this file."""
    with postgresql() as address:
        yield address


@pytest.fixture
def database(server: str) -> str:
    """Its database with the page's tables, empty."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS fences, charges")
        for block in SHOWN:
            if block.language == "sql":
                connection.execute(block.text.encode())
    return server


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    """The page's `_fenced.py`."""
    path = tmp_path / "_fenced.py"
    path.write_text(next(block.text for block in SHOWN if block.file == "jobs/_fenced.py"), encoding="utf-8")
    return path


@pytest.fixture
def fenced(helper: Path) -> Callable[..., Any]:
    """Its context manager."""
    found: Callable[..., Any] = runpy.run_path(str(helper))["fenced"]
    return found


def run_with(token: int) -> SimpleNamespace:
    return SimpleNamespace(job="charge", fencing_token=token)


def charged(database: str) -> list[str]:
    with psycopg.connect(database) as connection:
        return [row[0] for row in connection.execute("SELECT invoice FROM charges ORDER BY invoice")]


def test_an_older_token_is_refused_as_soon_as_a_newer_one_was_there(
    database: str, fenced: Callable[..., Any]
) -> None:
    """The same token may write again, an older one not, although the newer one has written to no row of its."""
    with psycopg.connect(database, autocommit=True) as old, psycopg.connect(database, autocommit=True) as new:
        for invoice in ("1", "2"):
            with fenced(old, run_with(7)):
                old.execute(CHARGE, (invoice, 7))
        with fenced(new, run_with(8)):
            pass
        with pytest.raises(Fenced, match="token 7 is too old"), fenced(old, run_with(7)):
            old.execute(CHARGE, ("3", 7))
    assert charged(database) == ["1", "2"]


def test_a_holder_paused_inside_its_transaction_loses_it_to_the_newer_one(
    database: str, fenced: Callable[..., Any]
) -> None:
    """The newer one waits until the server ends the idle session, and what that one had written is gone."""
    with psycopg.connect(database, autocommit=True) as old, psycopg.connect(database, autocommit=True) as new:
        paused = fenced(old, run_with(7))
        paused.__enter__()
        old.execute(CHARGE, ("late", 7))
        old.execute("SET LOCAL idle_in_transaction_session_timeout = '1s'")  # of the page's 15
        with fenced(new, run_with(8)):
            new.execute(CHARGE, ("new", 8))
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            paused.__exit__(None, None, None)
    assert charged(database) == ["new"]


@pytest.mark.slow
def test_a_woken_holder_is_refused_by_the_database_where_it_does_not_ask_first(
    database: str, helper: Path, tmp_path: Path, settings: Settings
) -> None:
    """Stopped past its lease, replaced and woken: its fenced row is refused, its row without the fence is not."""
    config = config_of(settings, tmp_path, body="charges", database=database, helper=str(helper))
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    with Replicas(config, tmp_path) as replicas:
        old = replicas.start("old")
        replicas.wait_for("holding")
        old.send_signal(signal.SIGSTOP)
        replicas.start("new")
        run_is(Outcome.SUCCEEDED, replicas, 40)
        old.send_signal(signal.SIGCONT)
        assert replicas.wait_for("tried")["pid"] == old.pid
        assert [line["pid"] for line in replicas.diary() if line["what"] == "refused"] == [old.pid]
        old.send_signal(signal.SIGTERM)
        assert old.wait(timeout=15) == 0, replicas.logs()
    assert charged(database) == ["attempt 1", "attempt 2", "late, not fenced"]
