"""runonce init and upgrade: what they write, what they leave alone, and what they say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.command_line import CommandLine

from runonce.cli import template

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    return CommandLine(tmp_path)


def written(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


@pytest.mark.parametrize(
    ("only", "there", "missing"),
    [
        (None, {"function_app.py", "Dockerfile", "infra/main.bicep", ".github/workflows/ci.yml"}, set()),
        ("functions", {"function_app.py", "host.json", "infra/jobs.json"}, {"Dockerfile", ".dockerignore"}),
        (
            "container-apps",
            {"Dockerfile", "infra/jobs.json"},
            {"function_app.py", "host.json", ".funcignore"},
        ),
        (
            "local",
            {"jobs/greet.py"},
            {"azure.yaml", "infra/jobs.json", ".github/workflows/ci.yml", "Dockerfile"},
        ),
    ],
)
def test_a_project_has_what_its_hosts_need(
    cli: CommandLine, tmp_path: Path, only: str | None, there: set[str], missing: set[str]
) -> None:
    """Each host's files are there, those of others are not, and nothing of this repository's samples is."""
    assert cli("init", "shop", *([] if only is None else ["--only", only])).exit_code == 0
    found = written(tmp_path / "shop")
    always = {"jobs/heartbeat.py", "tests/test_jobs.py", "requirements.txt", ".gitignore", template.STATE}
    assert found >= there | always
    assert not found & missing
    text = "".join((tmp_path / "shop" / path).read_text(encoding="utf-8") for path in found)
    assert not any(setting in text for setting in template.OURS)


def test_a_project_for_container_apps_says_so_wherever_it_is_asked(cli: CommandLine, tmp_path: Path) -> None:
    """Each default of the repository's files that names Functions is there, and names jobs in such a project."""
    assert cli("init", "shop", "--only", "container-apps").exit_code == 0
    for path, (ours, theirs) in template.DEFAULTS.items():
        assert ours in (template.root() / path).read_text(encoding="utf-8")
        text = (tmp_path / "shop" / path).read_text(encoding="utf-8")
        assert ours not in text
        assert theirs in text


def test_nothing_is_overwritten(cli: CommandLine, tmp_path: Path) -> None:
    """One file with another content, and the command names it, ends with 5 and writes nothing."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "host.json").write_text("{}")
    result = cli("init", "shop")
    assert result.exit_code == 5
    assert "has host.json already" in " ".join(result.stderr.split())
    assert written(tmp_path / "shop") == {"host.json"}


def test_upgrade_shows_what_differs_and_takes_a_file(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another version is shown as a diff and taken when named; one that was changed here is marked."""
    assert cli("init", "shop").exit_code == 0
    monkeypatch.chdir(tmp_path / "shop")
    assert "0 of " in cli("upgrade").stdout
    state = json.loads((tmp_path / "shop" / template.STATE).read_text())
    (tmp_path / "shop" / "host.json").write_text("{}\n")
    state["files"]["host.json"] = template.digest("{}\n")
    (tmp_path / "shop" / template.STATE).write_text(json.dumps(state))
    (tmp_path / "shop" / "azure.yaml").write_text("name: mine\n")
    (tmp_path / "shop" / "jobs" / "greet.py").unlink()
    shown = cli("upgrade").stdout
    assert "host.json\n--- here\n+++ new\n@@ -1 +1," in shown
    assert "azure.yaml (you have changed it)\n" in shown
    assert "2 of " in shown, "jobs/ is no business of it"
    assert cli("upgrade", "host.json").exit_code == 0
    assert '"version": "2.0"' in (tmp_path / "shop" / "host.json").read_text()
    assert "1 of " in cli("upgrade").stdout
    refused = cli("upgrade", "jobs/greet.py")
    assert refused.exit_code == 5
    assert "jobs/greet.py" in refused.stderr


def test_upgrade_elsewhere_says_where_it_works(cli: CommandLine) -> None:
    """In a folder that is no project it ends with 5 and says what it looked for."""
    result = cli("upgrade")
    assert result.exit_code == 5
    assert ".runonce.json is not here" in " ".join(result.stderr.split())
