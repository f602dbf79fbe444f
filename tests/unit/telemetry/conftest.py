from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.telemetry import Recorded, recording

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """Telemetry in memory."""
    with recording() as one:
        yield one
