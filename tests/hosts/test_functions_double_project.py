"""What the host reads of a project's files and settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.functions_worker.project import Bus, Project, Queues


def read(folder: Path, host_json: dict[str, Any], **settings: str) -> Project:
    (folder / "host.json").write_text(json.dumps(host_json))
    return Project.read(folder, settings)


def test_the_hosts_own_defaults(tmp_path: Path) -> None:
    """What host.json does not say is as the host has it: 16 + 8 messages, five deliveries, half an hour."""
    project = read(tmp_path, {"version": "2.0"})
    assert project.function_timeout == 1800
    assert project.queues == Queues(
        batch_size=16,
        new_batch_threshold=8,
        max_polling_interval=60,
        visibility_timeout=0,
        max_dequeue_count=5,
        base64=True,
    )
    assert project.bus == Bus(max_calls=16, prefetch=0, auto_complete=True, max_renewal=300)


def test_settings_lie_over_host_json(tmp_path: Path) -> None:
    """`AzureFunctionsJobHost__…` replaces a value of host.json, also one that is not there."""
    written = {"functionTimeout": "00:30:00", "extensions": {"queues": {"batchSize": 4}}}
    project = read(
        tmp_path,
        written,
        AzureFunctionsJobHost__functionTimeout="-1",
        AzureFunctionsJobHost__extensions__queues__batchSize="2",
        AzureFunctionsJobHost__extensions__serviceBus__maxAutoLockRenewalDuration="1.00:00:30",
    )
    assert project.function_timeout is None
    assert (project.queues.batch_size, project.queues.new_batch_threshold) == (2, 1)
    assert project.bus.max_renewal == 86_430


def test_a_time_span_that_is_none_is_named(tmp_path: Path) -> None:
    """A wrong value of host.json is shown."""
    with pytest.raises(ValueError, match=r"'soon' in host\.json is no time span"):
        read(tmp_path, {"functionTimeout": "soon"})


@pytest.mark.parametrize(
    ("settings", "listens"),
    [
        ({}, True),
        ({"AzureWebJobs.a-job.Disabled": "true"}, False),
        ({"AzureWebJobs.a-job.Disabled": "True"}, False),
        ({"AzureWebJobs.a-job.Disabled": "1"}, False),
        ({"AzureWebJobs.a-job.Disabled": "false"}, True),
        ({"AZUREWEBJOBS.A-JOB.DISABLED": "true"}, True),
        ({"AzureFunctionsJobHost__functions__0": "other"}, False),
        (
            {"AzureFunctionsJobHost__functions__0": "other", "AzureFunctionsJobHost__functions__1": "a-job"},
            True,
        ),
    ],
)
def test_which_functions_run(tmp_path: Path, settings: dict[str, str], listens: bool) -> None:
    """A function runs unless its own setting, by its exact name, or a list without it says otherwise."""
    assert read(tmp_path, {}, **settings).listens("a-job") is listens


def test_two_folders_have_two_host_ids(tmp_path: Path) -> None:
    """The id comes of the folder unless it is set."""
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
    assert read(first, {}).host_id != read(second, {}).host_id
    assert read(first, {}, AzureFunctionsWebHost__hostid="mine").host_id == "mine"
