"""The hook after a deployment, with an Azure CLI of the test's own first on the PATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.infrastructure import Infrastructure, with_jobs

if TYPE_CHECKING:
    from pathlib import Path

JOBS = """
from runonce import Message, Run, handler, scheduled

@scheduled("0 0 3 * * *")
def {job}(run: Run) -> None: ...

@scheduled("{seconds} 0 3 * * *")
def precise(run: Run) -> None: ...

@handler(queue="{handler}", key="id")
def {handler}(message: Message) -> None: ...
"""
AZ = """#!{python}
import json, os, sys
with open({calls!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + chr(10))
if sys.argv[2] == "list":
    print(open({listed!r}).read())
elif os.environ.get("REFUSED"):
    sys.exit("ERROR: AuthorizationFailed")
"""


class Azure:
    """A resource group, and the Azure CLI."""

    def __init__(self, folder: Path, infra: Infrastructure) -> None:
        self.folder = folder
        self.infra = infra
        self.calls = folder / "calls"
        self.resources = [
            {
                "id": f"/subscriptions/0/resourceGroups/rg/providers/{resource.type}/{resource.name}",
                "name": resource.name,
                "type": resource.type,
                "tags": resource.body["tags"],
            }
            for resource in infra.jobs().resources
        ]
        (folder / "bin").mkdir()
        az = folder / "bin" / "az"
        az.write_text(AZ.format(python=sys.executable, calls=str(self.calls), listed=str(folder / "listed")))
        az.chmod(0o755)

    def after_deploying(self, infra: Infrastructure, **environ: str) -> subprocess.CompletedProcess[str]:
        """What azd runs after it has deployed other templates."""
        (self.folder / "listed").write_text(json.dumps(self.resources))
        return subprocess.run(
            [sys.executable, infra.folder / "hooks" / "remove.py"],
            env={
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "DEPLOY_JOBS": "true",
                "AZURE_RESOURCE_GROUP": "rg",
                "AZURE_ENV_NAME": "shop_Production",
                "AZURE_SUBSCRIPTION_ID": "0",
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def asked(self) -> list[list[str]]:
        """The CLI's arguments, call by call."""
        return (
            [json.loads(line) for line in self.calls.read_text().splitlines()] if self.calls.exists() else []
        )

    def deleted(self) -> list[str]:
        """The names of what was deleted, in order."""
        return [
            call[call.index("--ids") + 1].rpartition("/")[2] for call in self.asked() if call[1] == "delete"
        ]


def templates(folder: Path, **names: Any) -> Infrastructure:
    folder.mkdir()
    return with_jobs(folder, JOBS.format(**{"job": "bill", "seconds": 0, "handler": "mail", **names}))


@pytest.fixture
def azure(tmp_path: Path) -> Azure:
    return Azure(tmp_path, templates(tmp_path / "before"))


def test_what_has_left_the_code_is_removed(azure: Azure, tmp_path: Path) -> None:
    """A renamed job, a deleted handler and one that five fields cannot say any more go, their alerts first."""
    after = templates(tmp_path / "after", job="charge", seconds=30, handler="send")
    done = azure.after_deploying(after)
    assert done.returncode == 0, done.stderr
    gone = ["bill", "mail", "precise"]
    assert azure.deleted() == [
        *(f"alert-failed-executions-{one}" for one in gone),
        *(f"caj-{one}" for one in gone),
    ]
    assert "removed caj-bill, which has left the code" in done.stdout
    listed, *deletions = azure.asked()
    assert listed == ["resource", "list", "--resource-group", "rg", "--output", "json", "--subscription", "0"]
    assert all(
        call[:3] == ["resource", "delete", "--ids"] and call[4:] == ["--subscription", "0"]
        for call in deletions
    )


def test_what_is_still_there_stays(azure: Azure) -> None:
    """A deployment of the same jobs removes nothing, recovery included."""
    assert len(azure.resources) == 8
    assert azure.after_deploying(azure.infra).returncode == 0
    assert azure.deleted() == []


def test_a_job_renamed_by_its_function_alone_stays(azure: Azure, tmp_path: Path) -> None:
    """With name= the job keeps its Container Apps job, as it keeps its history."""
    source = JOBS.format(job="bill", seconds=0, handler="mail")
    source = source.replace(
        '"0 0 3 * * *")\ndef bill', '"0 0 3 * * *", name="bill")\ndef charge_customers', 1
    )
    assert "charge_customers" in source
    (tmp_path / "after").mkdir()
    assert azure.after_deploying(with_jobs(tmp_path / "after", source)).returncode == 0
    assert azure.deleted() == []


def test_what_is_not_this_environments_is_not_touched(azure: Azure) -> None:
    """Jobs of another environment, without its tag, or named otherwise stay, whatever they are called."""
    strangers = [
        {"type": "Microsoft.App/jobs", "name": "caj-old", "tags": {"azd-env-name": "shop-staging"}},
        {"type": "Microsoft.App/jobs", "name": "caj-mine", "tags": None},
        {"type": "Microsoft.App/jobs", "name": "backup", "tags": {"azd-env-name": "shop_Production"}},
        {
            "type": "Microsoft.App/containerApps",
            "name": "caj-web",
            "tags": {"azd-env-name": "shop_Production"},
        },
        {
            "type": "Microsoft.Insights/metricAlerts",
            "name": "alert-dead",
            "tags": {"azd-env-name": "shop_Production"},
        },
    ]
    azure.resources += [{"id": f"/x/{one['name']}", **one} for one in strangers]
    assert azure.after_deploying(azure.infra).returncode == 0
    assert azure.deleted() == []


def test_on_the_other_path_nothing_is_asked(azure: Azure) -> None:
    """Without Container Apps jobs there is nothing to remove; a path that was left is taken away by hand."""
    for chosen in ("false", ""):
        assert azure.after_deploying(azure.infra, DEPLOY_JOBS=chosen).returncode == 0
    assert azure.asked() == []


def test_what_could_not_be_removed_is_told(azure: Azure, tmp_path: Path) -> None:
    """A refusal ends with 1, its reason and what to do; without the Azure CLI there is a warning."""
    after = templates(tmp_path / "after", job="charge")
    refused = azure.after_deploying(after, REFUSED="1")
    assert refused.returncode == 1
    assert "AuthorizationFailed" in refused.stderr
    assert "azd hooks run postdeploy" in refused.stderr
    (tmp_path / "nothing").mkdir()
    alone = azure.after_deploying(after, PATH=str(tmp_path / "nothing"))
    assert alone.returncode == 0
    assert "warning: without the Azure CLI" in alone.stderr
