"""The command line in a folder of `func start`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.command_line import invoke

from runonce.cli.context import Context, local_settings
from runonce.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

VALUES = {
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "RUNONCE_NAMESPACE": "theirs",
    "RUNONCE_JOBS": "mine",
}


def test_the_values_count_where_the_environment_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `func` sets for the app, a command in the same folder has too; the environment goes before it."""
    (tmp_path / "local.settings.json").write_text(
        "\ufeff" + json.dumps({"IsEncrypted": False, "Values": VALUES})
    )
    monkeypatch.chdir(tmp_path)
    for name in ("RUNONCE_STORAGE", "AzureWebJobsStorage", "RUNONCE_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNONCE_JOBS", str(tmp_path / "others"))
    settings = Context().runtime.settings
    assert settings.storage.setting == "AzureWebJobsStorage"
    assert (settings.namespace, settings.jobs_folder) == ("theirs", str(tmp_path / "others"))


def test_without_the_file_nothing_changes(tmp_path: Path) -> None:
    """No file, or one whose values are encrypted, adds nothing."""
    assert local_settings(tmp_path) == {}
    (tmp_path / "local.settings.json").write_text(json.dumps({"IsEncrypted": True, "Values": VALUES}))
    assert local_settings(tmp_path) == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"Values": 5}'])
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The error has the file and the remedy, and is wrong usage of the command."""
    (tmp_path / "local.settings.json").write_text(text)
    with pytest.raises(SettingsError, match=r"local\.settings\.json cannot be read .*sample"):
        local_settings(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert invoke(None, "status").exit_code != 0
