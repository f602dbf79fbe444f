"""The files of a project, as `runonce init` writes them: this repository's own, but for what only it has.

In a checkout they are read where they are; the build puts copies of them into the package.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runonce.errors import SettingsError

BUILT, CHECKOUT = Path(__file__).parents[1] / "_template", Path(__file__).parents[2]
STATE = ".runonce.json"
HOSTS = ("functions", "container-apps", "local")
OURS = ("EXCHANGE_RATES_URL",)
"""Settings of this repository's jobs."""
SERVICES = {"functions": "functions", "container-apps": "jobs"}
"""The service of azure.yaml that each host is."""
DEFAULTS = {
    "infra/main.parameters.json": ("${HOSTING_PATH=functions}", "${HOSTING_PATH=jobs}"),
    "infra/main.bicep": ("param hostingPath string = 'functions'", "param hostingPath string = 'jobs'"),
    "infra/hooks/check.py": ('.strip() or "functions"', '.strip() or "jobs"'),
    ".github/workflows/azure-dev.yml": ("vars.HOSTING_PATH || 'functions'", "vars.HOSTING_PATH || 'jobs'"),
}
"""Where a repository for both hosts says which one it is deployed to unless told otherwise, and what a project for
Container Apps alone says."""
MOVED = {"workflows/ci.yml": ".github/workflows/ci.yml"}
YOURS = ("jobs/", "tests/", "README.md")
"""Yours from the first moment: `upgrade` leaves them alone."""


def root() -> Path:
    """The folder that has the files: the package's own, or the checkout."""
    for folder in (BUILT, CHECKOUT):
        if (folder / "template" / "files.txt").is_file():
            return folder
    raise SettingsError("This installation of runonce has no project files; install a wheel or sdist of it.")


def installed() -> str:
    """The version of runonce that a project made now asks for."""
    try:
        return version("runonce")
    except PackageNotFoundError:
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return str(project["version"])


def project_files(name: str, only: str | None) -> dict[str, str]:
    """Path → text of every file of a project.

    Args:
        name: The project's name, as azd takes it.
        only: One of `HOSTS`, or None for all of them.
    """
    folder = root()
    wanted = {"any"}
    if only != "local":
        wanted |= {"azure", *(host for host in HOSTS if only in (None, host))}
    found: dict[str, str] = {}
    for line in (folder / "template" / "files.txt").read_text(encoding="utf-8").splitlines():
        kind, _, path = line.partition(" ")
        if kind in wanted:
            found |= _read(folder, folder / path.strip())
    for path, text in _read(folder / "template", folder / "template").items():
        if path != "files.txt" and ("azure" in wanted or path not in MOVED):
            found[MOVED.get(path, path)] = text
    return {path: _theirs(path, text, name, only) for path, text in sorted(found.items())}


def _read(folder: Path, start: Path) -> dict[str, str]:
    paths = [start] if start.is_file() else sorted(path for path in start.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in paths
        if "__pycache__" not in path.parts and path.name != "jobs.json"  # made from the project's own jobs
    }


def _theirs(path: str, text: str, name: str, only: str | None) -> str:
    """A file of this repository without what only this repository has."""
    lines = text.splitlines(keepends=True)
    if path in (".funcignore", ".dockerignore"):
        lines = [line for line in lines if not re.match(r"!/?runonce", line)]  # it is a package there
    if path in ("infra/main.parameters.json", ".github/workflows/azure-dev.yml"):
        lines = [line for line in lines if not any(setting in line for setting in OURS)]
    if only in SERVICES and path == "infra/hooks/check.py":
        other = ".dockerignore" if only == "functions" else ".funcignore"
        lines = [line for line in lines if f'"{other}": ' not in line]
    if path == "azure.yaml":
        lines = [f"name: {name}\n" if line.startswith("name: ") else line for line in lines]
        if only in SERVICES:
            service = re.compile(
                rf"^  {next(SERVICES[host] for host in SERVICES if host != only)}:\n(?:    .*\n)+",
                re.MULTILINE,
            )
            return service.sub("", "".join(lines))
    if only == "container-apps" and path in DEFAULTS:
        return DEFAULTS[path][1].join("".join(lines).split(DEFAULTS[path][0]))
    if path == "requirements.txt":
        lines = [line.replace(" and what dev.py builds on", "") for line in lines]
        lines.append(f"runonce=={installed()}\n")
    return "".join(lines)


def digest(text: str) -> str:
    """What a file is recognised by."""
    return hashlib.sha256(text.encode()).hexdigest()


def state_of(files: dict[str, str], name: str, only: str | None) -> str:
    """What is noted for `upgrade`: the version, and what each file was when it was written."""
    noted = {path: digest(text) for path, text in files.items() if not path.startswith(YOURS)}
    state = {"version": installed(), "name": name, "only": only, "files": noted}
    return json.dumps(state, indent=2) + "\n"
