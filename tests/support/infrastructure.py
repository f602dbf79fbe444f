"""infra/ with a manifest of a test's own, and what deploying it would make."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runonce.hosts.discover import discover
from runonce.hosts.manifest import make_manifest, to_text
from tests.support.bicep import Later, deploy

if TYPE_CHECKING:
    from tests.support.bicep import Deployment, Resource

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
FILES = sorted(INFRA.rglob("*.bicep"))

SAMPLE = """
from runonce import Message, Run, handler, scheduled

@scheduled("0 30 2 * * *", time_zone="America/New_York", max_runtime=None)
def new_york(run: Run) -> None: ...

@scheduled("*/10 * * * * *")
def often(run: Run) -> None: ...

@handler(queue="invoices", key="id", concurrency=4)
def send_invoice(message: Message) -> None: ...

@handler(topic="orders", subscription="billing", key="id")
def bill_the_order_of_a_customer_with_a_long_name(message: Message) -> None: ...

@handler(topic="orders", subscription="shipping", key="id", max_runtime=None)
def ship(message: Message) -> None: ...

@handler(topic="orders", subscription="archive", key="id", forward=False)
def archive(message: Message) -> None: ...
"""


class Infrastructure:
    """A folder of templates and the manifest in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))

    def main(self, hosting_path: str = "both", **parameters: Any) -> Deployment:
        """What `azd provision` would make."""
        given = {
            "environmentName": "shop_Production",
            "location": "westeurope",
            "principalId": "operator",
            "appSettings": {"EXCHANGE_RATES_URL": "https://example.com"},
            "hostingPath": hosting_path,
        }
        return deploy(self.folder / "main.bicep", **{**given, **parameters})

    def jobs(self, app_settings: dict[str, str] | None = None, **parameters: Any) -> Deployment:
        """What `azd deploy` would make of the outputs of `main`, by way of jobs.parameters.json."""
        outputs = self.main(**({} if app_settings is None else {"appSettings": app_settings})).outputs
        environment = {
            "AZURE_ENV_NAME": "shop_Production",
            "SERVICE_JOBS_IMAGE_NAME": "registry/runonce:1",
            **{name: _text(value) for name, value in outputs.items()},
        }
        return deploy(
            self.folder / "jobs.bicep",
            **{**parameters_from("jobs.parameters.json", environment), **parameters},
        )


def with_jobs(folder: Path, source: str = SAMPLE) -> Infrastructure:
    """The templates with the manifest of a job file; as it comes, one with every kind of job and handler."""
    shutil.copytree(INFRA, folder / "infra")
    (folder / "jobs").mkdir()
    (folder / "jobs" / "sample.py").write_text(source)
    made = make_manifest(discover(folder / "jobs"), datetime(2026, 11, 29, tzinfo=UTC))
    (folder / "infra" / "jobs.json").write_text(to_text(made))
    return Infrastructure(folder / "infra")


def parameters_from(file: str, environment: dict[str, str]) -> dict[str, Any]:
    """The parameters azd would pass: `${NAME}` and `${NAME=default}` replaced by the environment's values."""
    text = (INFRA / file).read_text(encoding="utf-8")

    def value(match: re.Match[str]) -> str:
        name, _, default = match[1].partition("=")
        assert name in environment or "=" in match[1], f"{file}: nothing sets {name}"
        return json.dumps(environment.get(name, default))[1:-1]

    entries = json.loads(re.sub(r"\$\{([^}]+)\}", value, text))["parameters"]
    return {name: entry["value"] for name, entry in entries.items()}


def entities_read_by(handler: dict[str, Any]) -> list[str]:
    """The queue of a manifest's handler, and its subscription where that does not forward to the queue."""
    direct = handler["subscription"] and not handler["forward"]
    return [*([f"{handler['topic']}/{handler['subscription']}"] if direct else []), handler["queue"]]


def environment_of(job: Resource) -> dict[str, str]:
    """The variables of a Container Apps job, those that are secrets included."""
    (container,) = job.properties["template"]["containers"]
    secrets = {one["name"]: one["keyVaultUrl"] for one in job.properties["configuration"]["secrets"]}
    return {
        one["name"]: one["value"] if "value" in one else secrets[one["secretRef"]] for one in container["env"]
    }


def settings_of(deployment: Deployment) -> dict[str, Any]:
    """The settings of the Function app."""
    listed = deployment.one("Microsoft.Web/sites").properties["siteConfig"]["appSettings"]
    names = [one["name"] for one in listed]
    assert len(names) == len(set(names)), f"set twice: {names}"
    return {one["name"]: one["value"] for one in listed}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


__all__ = [
    "FILES",
    "INFRA",
    "ROOT",
    "Infrastructure",
    "Later",
    "entities_read_by",
    "environment_of",
    "parameters_from",
    "settings_of",
    "with_jobs",
]
