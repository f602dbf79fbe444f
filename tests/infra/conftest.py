from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.infrastructure import INFRA, Infrastructure, with_jobs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["shipped", "sample"])
def infra(request: pytest.FixtureRequest, tmp_path: Path) -> Infrastructure:
    """infra/ with the shipped manifest, and with one that has every kind of job and handler."""
    return Infrastructure(INFRA) if request.param == "shipped" else with_jobs(tmp_path)


@pytest.fixture
def sample(tmp_path: Path) -> Infrastructure:
    """infra/ with a manifest that has every kind of job and handler."""
    return with_jobs(tmp_path)
