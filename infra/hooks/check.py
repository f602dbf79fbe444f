"""What can be known to go wrong before anything is made in Azure; azd runs this before `up` and `provision`.

Standard library only, since it is run by whatever Python is there. Needs nothing of Azure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = ("functions", "jobs", "both")
NAMESPACE = re.compile(r"[a-z0-9](-?[a-z0-9]){2,38}")


def problems(env: dict[str, str]) -> list[str]:
    """What stands against provisioning, each with its remedy."""
    if sys.version_info < (3, 11):  # noqa: UP036 - whatever Python is there runs this
        return [f"Python {sys.version.split()[0]} is too old: put Python 3.11 or newer first on the PATH."]
    return [*_path(env), *_namespace(env), *_manifest()]


def hosting_path(env: dict[str, str]) -> str:
    return env.get("HOSTING_PATH", "").strip() or "functions"


def _path(env: dict[str, str]) -> list[str]:
    chosen = hosting_path(env)
    if chosen not in PATHS:
        return [
            f"HOSTING_PATH={chosen!r} is not one of {', '.join(PATHS)}: azd env set HOSTING_PATH functions"
        ]
    if chosen != "jobs":
        return []
    refused = [job["container_apps_refusal"] for job in _listed("jobs") if job["container_apps_refusal"]]
    return [f"HOSTING_PATH=jobs cannot take every job. {refusal}" for refusal in refused]


def _namespace(env: dict[str, str]) -> list[str]:
    given = env.get("RUNONCE_NAMESPACE", "").strip()
    made = f"runonce-{env.get('AZURE_ENV_NAME', 'local')}".replace("_", "-").lower()
    namespace = given or made
    if NAMESPACE.fullmatch(namespace):
        return []
    problem = (
        f"The namespace {namespace!r} is not 3 to 40 lower-case letters and digits with single hyphens between: "
        "azd env set RUNONCE_NAMESPACE shop-production, or choose another environment name."
    )
    return [problem]


def _manifest() -> list[str]:
    command = [_python(), "-m", "runonce", "manifest", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    said = [
        text.removeprefix("error: ") for text in (done.stderr.strip() or done.stdout.strip()).splitlines()
    ]
    if "ModuleNotFoundError" in done.stderr:
        return [f"{said[-1]}: {command[0]} -m pip install -r requirements.txt"]
    return said or [f"`runonce manifest --check` ended with {done.returncode}."]


def _python() -> str:
    """The project's own environment where there is one; azd knows nothing of it."""
    for place in ("bin/python", "Scripts/python.exe"):
        if (ROOT / ".venv" / place).exists():
            return str(ROOT / ".venv" / place)
    return sys.executable


def _listed(kind: str) -> list[dict[str, Any]]:
    file = ROOT / "infra" / "jobs.json"
    return json.loads(file.read_text(encoding="utf-8"))[kind] if file.exists() else []


def warnings(env: dict[str, str]) -> list[str]:
    """What may be meant."""
    if hosting_path(env) == "jobs":
        return []
    host = json.loads((ROOT / "host.json").read_text(encoding="utf-8"))
    limit = _seconds(host["functionTimeout"])
    renewed = _seconds(host["extensions"].get("serviceBus", {}).get("maxAutoLockRenewalDuration", "00:05:00"))
    too_long = [
        f"{job['name']} may take {job['max_runtime']} s, and the Functions host ends it after {limit} s "
        f"(functionTimeout in host.json); it then goes on from its checkpoint. Raise that, or use Container Apps jobs."
        for job in _listed("jobs")
        if int(job["max_runtime"]) > limit
    ]
    unlocked = [
        f"{handler['name']} may take {handler['max_runtime']} s, and the Functions host keeps a message's lock for "
        f"{renewed} s (serviceBus.maxAutoLockRenewalDuration in host.json); it still has one effect, but is "
        f"delivered again meanwhile. Raise that."
        for handler in _listed("handlers")
        if int(handler["max_runtime"]) > renewed
    ]
    return [*too_long, *unlocked]


def _seconds(clock: str) -> int:
    hours, minutes, seconds = map(int, clock.split(":"))
    return hours * 3600 + minutes * 60 + seconds


def tell_azd(env: dict[str, str]) -> None:
    """Set what azure.yaml's conditions ask for."""
    azd, chosen = shutil.which("azd"), hosting_path(env)
    if azd is None or not env.get("AZURE_ENV_NAME"):
        return
    for name, wanted in (("DEPLOY_FUNCTIONS", chosen != "jobs"), ("DEPLOY_JOBS", chosen != "functions")):
        command = [azd, "env", "set", name, str(wanted).lower(), "--environment", env["AZURE_ENV_NAME"]]
        subprocess.run(command, cwd=ROOT, check=True)


def main() -> int:
    """Check; 1 when something is wrong."""
    env = dict(os.environ)
    found = problems(env)
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if found:
        return 1
    for warning in warnings(env):
        print(f"warning: {warning}", file=sys.stderr)
    tell_azd(env)
    print(f"checked: jobs.json is up to date, hosting path {hosting_path(env)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
