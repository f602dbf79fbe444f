from __future__ import annotations

import importlib.util
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.infrastructure import INFRA, ROOT, Infrastructure, with_jobs

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@pytest.fixture(params=["shipped", "sample"])
def infra(request: pytest.FixtureRequest, tmp_path: Path) -> Infrastructure:
    """infra/ with the shipped manifest, and with one that has every kind of job and handler."""
    return Infrastructure(INFRA) if request.param == "shipped" else with_jobs(tmp_path)


@pytest.fixture
def sample(tmp_path: Path) -> Infrastructure:
    """infra/ with a manifest that has every kind of job and handler."""
    return with_jobs(tmp_path)


@pytest.fixture(scope="session")
def azurite_launcher() -> Any:
    """The module that finds or installs Node.js for the emulator."""
    spec = importlib.util.spec_from_file_location("azurite_launcher", ROOT / "azurite" / "launcher.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The check, at work on a copy of what it reads."""
    spec = importlib.util.spec_from_file_location("infra_check", INFRA / "hooks" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "infra").mkdir()
    (tmp_path / "host.json").write_text((ROOT / "host.json").read_text())
    manifest = json.loads((INFRA / "jobs.json").read_text())
    (tmp_path / "infra" / "jobs.json").write_text(json.dumps(manifest))
    for name in (".funcignore", ".dockerignore", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "_manifest", list)
    return module
