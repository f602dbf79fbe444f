from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A benchmark's module, by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_cpu_is_a_processs_own_and_that_of_its_children_that_have_ended(module: Any) -> None:
    """The ticks of /proc/PID/stat are summed, whatever the name of the process has in it."""
    stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 9 0 0 0 30 4 5 1 20 0 3 0 99"
    assert module("processes").ticks_of(stat) == 40


@pytest.mark.slow
def test_what_became_of_the_killed_is_told_from_the_effects_after_the_kill(module: Any) -> None:
    """Effects before it do not count, those of another fire time are told apart."""
    peers = module("peers")
    before, again = peers.Note("begun", "a", 1, 98.0), peers.Note("begun", "a", 2, 160.4)
    other = peers.Note("begun", "b", 2, 112.0)
    told = partial(peers.fate, key="a")
    assert told([before], at=100.0, alone=True) == "not again within 140 s"
    assert told([before], at=100.0, alone=False) == "not again within 140 s; no fire time since"
    assert told([before, other, again], at=100.0, alone=False) == (
        "again after 60 s; the next fire time after 12 s"
    )
    assert told([again, again], at=60.0, alone=True) == (
        "again after 100 s, when it was started again, 3 times in all"
    )
