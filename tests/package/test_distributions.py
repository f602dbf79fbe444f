"""The package as others install it: built, checked, put into empty environments, with and without its extras."""

from __future__ import annotations

import re
import tarfile
import tomllib
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.support.environments import Environment, interpreter, run
from tests.support.pages import ROOT, read

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)  # whoever comes first builds the package
PROJECT = tomllib.loads(read("pyproject.toml"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
CORE = {
    "azure-core",
    "azure-data-tables",
    "azure-storage-queue",
    "azure-storage-blob",
    "azure-identity",
    "certifi",
    "croniter",
    "tzdata",
    "urllib3",
}
VERSIONS = ("3.11", "3.12", "3.13")
LEASES = """
import os
from runonce.hosts.runtime import Runtime

os.environ["RUNONCE_LEASES"] = "{}://host/0"
Runtime().stores
"""
NEEDS = {
    "functions": "from pathlib import Path; from runonce.hosts.functions import build; build(Path())",
    "servicebus": "from runonce.hosts.runtime import Runtime; Runtime().transport",
    "postgresql": LEASES.format("postgresql"),
    "redis": LEASES.format("redis"),
    "pydantic": """
from dataclasses import dataclass
from runonce import handler

@dataclass
class Order:
    id: str

@handler(queue="orders", key="id")
def ship(order: Order) -> None:
    pass
""",
}
"""Code that an extra is for."""
BUS = {
    "RUNONCE_STORAGE": "UseDevelopmentStorage=true",
    "RUNONCE_SERVICEBUS": "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b",
}


def test_the_core_is_small_and_all_is_every_extra() -> None:
    """What everybody installs is storage, sign-in and schedules; each extra exists, and [all] names all of them."""
    assert {Requirement(text).name for text in PROJECT["dependencies"]} == CORE
    tools = {"azure-monitor", "cli", "dashboard", "functions", "otel", "pydantic"}
    assert set(EXTRAS) == tools | {"all", "postgresql", "redis", "servicebus"}
    (everything,) = map(Requirement, EXTRAS["all"])
    assert (everything.name, everything.extras) == ("runonce", set(EXTRAS) - {"all"})


def test_both_distributions_pass_the_check_of_the_index(tools: Environment, dist: Path) -> None:
    """`twine check --strict` finds nothing, and both are of the version that pyproject.toml names."""
    run(tools.bin / "python", "-m", "twine", "check", "--strict", *dist.iterdir())
    assert {path.name for path in dist.iterdir()} == {
        f"runonce-{PROJECT['version']}.tar.gz",
        f"runonce-{PROJECT['version']}-py3-none-any.whl",
    }


def test_the_wheel_is_what_the_sdist_holds(dist: Path, wheel: Path) -> None:
    """Every module of the package is in both, and the types with them; in the wheel is nothing else, such as tests."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {name for name in run("git", "ls-files", "runonce", cwd=ROOT).split() if (ROOT / name).exists()}
    assert wanted
    assert wanted <= packed
    names = ZipFile(wheel).namelist()
    assert wanted <= set(names)
    about = f"runonce-{PROJECT['version']}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"runonce", "runonce_pytest.py", about}
    code = {
        name.rpartition(".")[2]
        for name in names
        if name.startswith("runonce/") and not name.startswith(("runonce/_template/", "runonce/_local/"))
    }
    assert code == {"py", "typed", *("html", "css", "js", "txt")}  # the dashboard's


@pytest.mark.parametrize("version", VERSIONS)
def test_it_installs_into_an_empty_folder(version: str, wheel: Path, tmp_path: Path) -> None:
    """On each Python the bare package imports, what needs an extra names it in one line, and [cli] is a command."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    fresh = Environment(tmp_path, python)
    fresh.pip(wheel)
    assert fresh.answer("python", "-c", "import runonce.testing").returncode == 0
    for command in (("runonce", "list"), ("python", "-m", "runonce", "list")):
        answer = fresh.answer(*command)
        assert answer.returncode == 1
        assert re.fullmatch(r'error: .*pip install "runonce\[cli\]"\n', answer.stderr), answer.stderr
    for extra, code in NEEDS.items():
        answer = fresh.answer("python", "-c", code, **BUS)
        assert answer.returncode == 1
        assert f"runonce[{extra}]" in answer.stderr.strip().rpartition("\n")[2], answer.stderr
    fresh.pip(f"{wheel}[cli]")
    answer = fresh.answer("runonce", "--version")
    assert (answer.returncode, answer.stdout.strip()) == (0, PROJECT["version"])
