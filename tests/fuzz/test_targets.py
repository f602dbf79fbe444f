"""Every target of fuzz/ with inputs made of its samples, and with each that ever broke it; `dev.py fuzz` tries more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.__main__ import MISSING, main
from fuzz.targets import TARGETS
from tests.support.service_bus import require_broker

NIGHTLY = int(os.environ.get("RUNONCE_FUZZ_EXAMPLES", "0"))
"""Examples for each target; 0 tries few, the same each time."""
some = settings(
    max_examples=NIGHTLY or 15,
    derandomize=not NIGHTLY,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
OF_THE_BROKER = ("connection", "command")
NAMES = sorted({*TARGETS, *OF_THE_BROKER})
ODD = [
    *(
        b"",
        b"\x00",
        b"\xff",
        b"\xc3\xbc",
        b"\xed\xa0\x80",
        "٣²".encode(),
        b'"',
        b"{",
        b"[" * 3000,
        b"[]",
        b"\n",
        b"=",
        b"%00",
    ),
    *(b"-1", b"1e400", b"NaN", b"null", b"true", b"9" * 5000, b"2026-11-29", b"0001-01-01T00:00:00+14:00"),
    *(
        b"9999-12-31T23:59:59Z",
        b'"format": 2, ',
        b"\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\x00\x53\x18\x45",
        b"\xc1\x01\x00",
    ),
]
"""What is put in the place of a part of a sample."""


def target(name: str) -> Any:
    if name in OF_THE_BROKER:
        require_broker()
    return TARGETS[name]


@st.composite
def changed(draw: st.DrawFn, samples: tuple[bytes, ...]) -> bytes:
    """A sample with some of its parts replaced, by others or by parts of other samples."""
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + draw(st.sampled_from([0, 1, 4, 60])))))
        other = draw(st.sampled_from(samples))
        cut = draw(st.integers(0, len(other)))
        part = draw(st.sampled_from(ODD) | st.binary(max_size=8) | st.just(other[cut : cut + 30]))
        data = data[:start] + part + data[end:]
    return data


@pytest.mark.parametrize("name", NAMES)
def test_whatever_comes_from_outside_is_taken_or_refused(name: str) -> None:
    """Each reader takes changed inputs or refuses them with its own error; nothing else is raised, and nothing lost."""
    one = target(name)

    @some
    @given(changed(one.samples))
    def holds(data: bytes) -> None:
        one.check(data)

    holds()


@pytest.mark.parametrize("name", NAMES)
def test_what_once_broke_does_not_break_again(name: str) -> None:
    """Samples, and all inputs that fuzzing ever found, are taken or refused as they should be."""
    one = target(name)
    for data in (*one.samples, *one.found()):
        one.check(data)


def test_every_target_is_told() -> None:
    """The page of what the tests run has each target, and what must hold of it."""
    page = (Path(__file__).parents[2] / "docs" / "tested.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_without_atheris_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where atheris is not installed the command ends with 2 and one error that says how to get it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["--seconds", "1"]) == 2
    assert capsys.readouterr().err == f"{MISSING}\n"
