"""Removes the Container Apps jobs that have left the code; azd runs this after `deploy`.

A deployment makes and updates, and deletes nothing: the old job of a deleted or renamed one would go on with its old
image. What runs in it at that moment ends. Only jobs of this environment, by their tag, and the alerts that watch them
are touched. Needs the Azure CLI, signed in; standard library only, since it is run by whatever Python is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

INFRA = Path(__file__).resolve().parent.parent
JOB, ALERT = "microsoft.app/jobs", "microsoft.insights/metricalerts"


def left(resources: list[dict[str, Any]], environment: str, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The resources that infra/jobs.bicep has made for this environment and would not make again; alerts first."""
    prefixes = json.loads((INFRA / "abbreviations.json").read_text(encoding="utf-8"))
    wanted = {entry["resource"] for entry in manifest["jobs"] if entry["container_apps_cron"]}
    wanted |= {entry["resource"] for entry in (*manifest["handlers"], manifest["recovery"])}
    kinds = {JOB: prefixes["containerAppsJob"], ALERT: f"{prefixes['alert']}failed-executions-"}
    found = []
    for resource in resources:
        prefix = kinds.get(resource["type"].lower())
        ours = (resource.get("tags") or {}).get("azd-env-name") == environment
        name: str = resource["name"]
        if prefix and ours and name.startswith(prefix) and name.removeprefix(prefix) not in wanted:
            found.append(resource)
    return sorted(found, key=lambda resource: (resource["type"].lower() == JOB, resource["name"]))


def main() -> int:
    """Remove them; 1 when that did not succeed, with what to do."""
    if os.environ.get("DEPLOY_JOBS", "").lower() != "true":
        return 0
    group, environment = os.environ["AZURE_RESOURCE_GROUP"], os.environ["AZURE_ENV_NAME"]
    by_hand = f"az resource list --resource-group {group} --resource-type Microsoft.App/jobs"
    az = shutil.which("az")
    if az is None:
        print(
            f"warning: without the Azure CLI nobody looked for jobs that have left the code. They run nothing more, "
            f"but cost their starts; see them with `{by_hand}`, or in the portal.",
            file=sys.stderr,
        )
        return 0
    where = ["--subscription", given] if (given := os.environ.get("AZURE_SUBSCRIPTION_ID")) else []
    try:
        listed = _az(az, "resource", "list", "--resource-group", group, "--output", "json", *where)
        manifest = json.loads((INFRA / "jobs.json").read_text(encoding="utf-8"))
        for resource in left(json.loads(listed), environment, manifest):
            _az(az, "resource", "delete", "--ids", resource["id"], *where)
            print(f"removed {resource['name']}, which has left the code")
    except subprocess.CalledProcessError as error:
        print(
            f"error: jobs that have left the code may still be there: {error.stderr.strip()}\nSign in with `az login`, "
            f"then `azd hooks run postdeploy`; or see them with `{by_hand}`, and delete them.",
            file=sys.stderr,
        )
        return 1
    return 0


def _az(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
