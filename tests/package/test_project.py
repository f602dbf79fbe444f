"""A project of one's own, from the built package to the first run: what a newcomer does, carried out."""

from __future__ import annotations

import compileall
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest
import yaml

from tests.support.environments import run
from tests.support.infrastructure import Infrastructure
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.timeout(600)  # whoever comes first builds the package


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package from its wheel; what it needs is this environment's, and nothing of the checkout is on the path."""
    folder = tmp_path_factory.mktemp("unpacked")
    ZipFile(wheel).extractall(folder)
    # Each process would, in vain.
    compileall.compile_dir(folder, quiet=1, rx=re.compile("_template|_local"))
    return folder


@pytest.fixture
def environ(unpacked: Path, azurite: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(unpacked),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RUNONCE_STORAGE": azurite,
        "RUNONCE_NAMESPACE": f"init-{uuid.uuid4().hex[:8]}",
    }


def test_the_package_has_the_repository_s_own_files(unpacked: Path) -> None:
    """The files of a project in the package are those of the repository, byte for byte, and all of them."""
    inside = unpacked / "runonce" / "_template"
    copied = {path.relative_to(inside).as_posix() for path in inside.rglob("*") if path.is_file()}
    asked = [
        line.split()[1]
        for line in (ROOT / "template" / "files.txt").read_text().splitlines()
        if line[0] != "#"
    ]
    tracked = run("git", "ls-files", "-c", "-o", "--exclude-standard", "template", *asked, cwd=ROOT).split()
    assert copied == set(tracked)
    assert all((inside / path).read_bytes() == (ROOT / path).read_bytes() for path in copied)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_from_init_to_the_first_run(environ: dict[str, str], tmp_path: Path) -> None:
    """`init` makes a project whose tests pass, whose manifest is right, and whose job and handler both run."""
    project = tmp_path / "my-jobs"
    runonce = [sys.executable, "-m", "runonce"]
    run(*runonce, "init", project, env=environ, cwd=tmp_path)
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", env=environ, cwd=project)
    run(*runonce, "manifest", "--check", env=environ, cwd=project)
    checked = run(
        sys.executable, "infra/hooks/check.py", env={**environ, "HOSTING_PATH": "both"}, cwd=project
    )
    assert "jobs.json is up to date" in checked
    host = subprocess.Popen([*runonce, "serve"], cwd=project, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        assert host.stderr is not None
        assert "1 job and 1 handler" in host.stderr.readline()
        run(*runonce, "enqueue", "greet", "--body", '{"name": "Ada"}', env=environ, cwd=project)
        ended = {"[heartbeat ": "succeeded", "[greet ": "done"}
        while ended:
            line = host.stderr.readline()
            assert line, f"it ended with {host.poll()} before {ended}"
            ended = {name: how for name, how in ended.items() if name not in line or how not in line}
        host.send_signal(signal.SIGINT)
        host.communicate(timeout=60)
        assert host.returncode == 0
    finally:
        host.kill()
        host.wait()
    assert "succeeded" in run(*runonce, "history", "heartbeat", env=environ, cwd=project)


def test_the_package_brings_the_emulator_and_keeps_its_own_folder_clean(
    unpacked: Path, tmp_path: Path
) -> None:
    """`runonce dev` of an installed package installs Azurite beside no Python package, and runs a project on it."""
    before = {path for path in unpacked.rglob("*") if path.is_file()}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUNONCE_")}
    environ = {**clean, "PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
    environ |= {"XDG_CONFIG_HOME": str(tmp_path / "home"), "LOCALAPPDATA": str(tmp_path / "home")}
    runonce = [sys.executable, "-m", "runonce"]
    run(*runonce, "init", "--only", "local", "shop", env=environ, cwd=tmp_path)
    command = [*runonce, "dev"]
    with subprocess.Popen(
        command, cwd=tmp_path / "shop", env=environ, stderr=subprocess.PIPE, text=True
    ) as dev:
        try:
            assert dev.stderr is not None
            said = []
            while not said or "Ctrl-C stops it" not in said[-1]:
                said.append(dev.stderr.readline())
                assert said[-1], "".join(said)
            assert "installing the emulator" in said[1]
            dev.send_signal(signal.SIGINT)
            dev.communicate(timeout=60)
            assert dev.returncode == 0
        finally:
            dev.kill()
    assert {path for path in unpacked.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("only", "services", "missing"),
    [
        ("functions", {"functions"}, {"Dockerfile", ".dockerignore"}),
        ("container-apps", {"jobs"}, {"function_app.py", "host.json", ".funcignore"}),
        ("local", set(), {"azure.yaml", "infra", "Dockerfile", "function_app.py", ".github"}),
        (None, {"functions", "jobs"}, set()),
    ],
)
def test_a_project_for_one_host_is_whole(
    environ: dict[str, str], tmp_path: Path, only: str | None, services: set[str], missing: set[str]
) -> None:
    """Its tests pass, azure.yaml names what is there, and the check before provisioning finds nothing."""
    runonce = [sys.executable, "-m", "runonce"]
    run(*runonce, "init", *([] if only is None else ["--only", only]), "shop", env=environ, cwd=tmp_path)
    project = tmp_path / "shop"
    assert not [name for name in missing if (project / name).exists()]
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", env=environ, cwd=project)
    assert "0 of " in run(*runonce, "upgrade", env=environ, cwd=project)
    if only == "local":
        return
    azure = yaml.safe_load((project / "azure.yaml").read_text(encoding="utf-8"))
    assert (azure["name"], set(azure["services"])) == ("shop", services)
    named = [service["docker"]["path"] for service in azure["services"].values() if "docker" in service]
    named += [
        f"infra/{service['module']}.bicep" for service in azure["services"].values() if "module" in service
    ]
    named += [how["run"].split()[-1] for hook in azure["hooks"].values() for how in hook.values()]
    assert all((project / path).is_file() for path in named)
    clean = {name: value for name, value in environ.items() if name != "RUNONCE_NAMESPACE"}
    run(sys.executable, "infra/hooks/check.py", env={**clean, "AZURE_ENV_NAME": "shop-test"}, cwd=project)


def test_the_templates_of_a_project_make_what_its_jobs_need(environ: dict[str, str], tmp_path: Path) -> None:
    """Worked out offline, they make a queue and a job for the handler, and a job for the schedule."""
    run(sys.executable, "-m", "runonce", "init", "shop", env=environ, cwd=tmp_path)
    infra = Infrastructure(tmp_path / "shop" / "infra")
    queues = [one.name for one in infra.main("both").of("Microsoft.ServiceBus/namespaces/queues")]
    assert [name.rpartition("/")[2] for name in queues] == ["greetings"]
    assert {job.name for job in infra.jobs().of("Microsoft.App/jobs")} == {
        "caj-greet",
        "caj-heartbeat",
        "caj-runonce-recovery",
    }
    if checker := os.environ.get("BICEP_CHECK"):  # one that reads all of the language, where there is one
        run(sys.executable, checker, *sorted((tmp_path / "shop" / "infra").rglob("*.bicep")))


def test_two_projects_on_one_emulator_see_nothing_of_each_other(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Rows, messages and requests are each one's own, though all is called the same and nothing was set."""
    runonce = [sys.executable, "-m", "runonce"]
    shared = {name: value for name, value in environ.items() if name != "RUNONCE_NAMESPACE"}
    here, there = tmp_path / "one" / "shop", tmp_path / "two" / "shop"
    for project in (here, there):
        run(*runonce, "init", "--only", "local", project, env=shared, cwd=tmp_path)

    def told(project: Path, *args: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(run(*runonce, *args, "--json", env=shared, cwd=project))
        return answer

    run(*runonce, "enqueue", "greet", "--body", '{"name": "Ada"}', env=shared, cwd=here)
    run(*runonce, "run", "heartbeat", "--at", "2026-01-01T12:00:00Z", env=shared, cwd=here)
    run(*runonce, "run", "heartbeat", "--at", "2026-01-01T12:01:00Z", "--ask", env=shared, cwd=here)
    assert told(there, "work", "greet", "--max-wait", "1")["handled"] == 0
    told(there, "recover", "--work")
    runs = told(there, "history", "heartbeat")["runs"]
    assert [one for one in runs if one["fire_time"].startswith("2026-01-01")] == []
    assert told(here, "work", "greet", "--max-wait", "1")["handled"] == 1
    worked = told(here, "recover", "--work")["worked"]  # besides it what the clock has made due meanwhile
    assert "2026-01-01T12:01:00Z" in [one["fire_time"] for one in worked]
    known = [one["fire_time"] for one in told(here, "history", "heartbeat")["runs"]]
    assert {"2026-01-01T12:00:00Z", "2026-01-01T12:01:00Z"} <= set(known)
