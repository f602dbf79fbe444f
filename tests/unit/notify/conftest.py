from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.listener import Listener, listening

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[Listener]:
    """A real HTTP server that keeps what it is sent."""
    with listening() as one:
        yield one


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits between tries, and for an answer."""
    monkeypatch.setattr("runonce.notify.post.PAUSES", (0.05, 0.1))
    monkeypatch.setattr("runonce.notify.post.ANSWER", 0.5)
    monkeypatch.setattr("runonce.notify.post.LONGEST", 1.0)
