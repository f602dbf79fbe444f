"""What can be known to go wrong before anything is made in Azure; azd runs this before `up` and `provision`.

Standard library only, since it is run by whatever Python is there. Needs nothing of Azure; where the Azure CLI is
there, it is asked whether a provider that this deployment needs is registered.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = ("functions", "jobs", "both")
NAMESPACE = re.compile(r"[a-z0-9](-?[a-z0-9]){2,38}")


def problems(env: dict[str, str]) -> list[str]:
    """What stands against provisioning, each with its remedy."""
    if sys.version_info < (3, 11):  # noqa: UP036 - whatever Python is there runs this
        return [f"Python {sys.version.split()[0]} is too old: put Python 3.11 or newer first on the PATH."]
    return [*_path(env), *_namespace(env), *_schedules(env), *_provider(env), *packed(), *_manifest()]


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


def _schedules(env: dict[str, str]) -> list[str]:
    """Settings that give a schedule which Container Apps would not have."""
    if hosting_path(env) == "functions":
        return []
    given = {job["name"]: env.get(job.get("schedule_setting", ""), "").strip() for job in _listed("jobs")}
    return [
        f"{job['schedule_setting']}={given[job['name']]!r} is not the schedule that {job['name']} is deployed with on "
        f"Container Apps, which is the manifest's ({job['schedule']}): write it as default= in the code, run "
        f"`python -m runonce manifest`, and take the setting away (azd env set {job['schedule_setting']} '')."
        for job in _listed("jobs")
        if given[job["name"]] and " ".join(given[job["name"]].split()) != job["schedule"]
    ]


def _namespace(env: dict[str, str]) -> list[str]:
    namespace = _named(env)
    deployed = env.get("DEPLOYED_NAMESPACE", "").strip()
    if not NAMESPACE.fullmatch(namespace):
        problem = (
            f"The namespace {namespace!r} is not 3 to 40 lower-case letters and digits with single hyphens between: "
            "azd env set RUNONCE_NAMESPACE shop-production, or choose another environment name."
        )
    elif deployed not in ("", namespace, env.get("REPLACE_NAMESPACE", "").strip()):
        problem = (
            f"What is deployed works in the namespace {deployed!r}, and this would give it {namespace!r}, in which "
            f"nothing is done yet: every job and every message could run again. azd env set RUNONCE_NAMESPACE "
            f"{deployed}; or, to begin anew as docs/deploy.md says, azd env set REPLACE_NAMESPACE {deployed}"
        )
    else:
        return []
    return [problem]


def _named(env: dict[str, str]) -> str:
    made = f"runonce-{env.get('AZURE_ENV_NAME', 'local')}".replace("_", "-").lower()
    return env.get("RUNONCE_NAMESPACE", "").strip() or made


def _provider(env: dict[str, str], *, unknown: bool = False) -> list[str]:
    """Whether Microsoft.App is registered where only a subnet needs it: Azure registers what a template names.

    Args:
        env: The variables.
        unknown: Say what could not be found out, in place of what was.
    """
    if hosting_path(env) != "functions" or env.get("USE_VIRTUAL_NETWORK", "").strip().lower() != "true":
        return []
    az = shutil.which("az")
    state = ""
    if az is not None:
        command = [az, "provider", "show", "--namespace", "Microsoft.App", "--query", "registrationState"]
        if env.get("AZURE_SUBSCRIPTION_ID"):
            command += ["--subscription", env["AZURE_SUBSCRIPTION_ID"]]
        done = subprocess.run([*command, "--output", "tsv"], capture_output=True, text=True, check=False)
        state = done.stdout.strip() if done.returncode == 0 else ""
    remedy = "az provider register --namespace Microsoft.App"
    if unknown:
        return (
            [] if state else [f"A function in a virtual network needs the provider Microsoft.App: {remedy}"]
        )
    if state in ("", "Registered", "Registering"):
        return []
    return [f"A function in a virtual network needs the provider Microsoft.App, which is {state}: {remedy}"]


def packed() -> list[str]:
    """What the jobs use that would not be packed for every host, each with its remedy."""
    if sys.version_info < (3, 11):  # noqa: UP036 - see problems()
        return []
    import tomllib  # noqa: PLC0415 - newer than the oldest Python that may run this

    try:
        section: Any = tomllib.loads(_text("pyproject.toml"))
    except tomllib.TOMLDecodeError as error:
        return [f"pyproject.toml is not readable: {error}"]
    for key in ("tool", "setuptools", "packages", "find"):
        section = section.get(key, {})
    patterns = section.get("include", [])
    lists = {
        "pyproject.toml": {"jobs", *(pattern.partition("*")[0].partition(".")[0] for pattern in patterns)},
        ".funcignore": _kept(".funcignore", "!/", "/") & _kept(".funcignore", "!/", "/**"),
        ".dockerignore": _kept(".dockerignore", "!", ""),
    }
    everything = set().union(*lists.values())
    unequal = [
        f"{file} does not name the package {name}, which {' and '.join(others)} names: add it (docs/deploy.md, "
        f"What a job may use), or take it out of the others."
        for file, names in lists.items()
        for name in sorted(everything - names)
        if (others := [other for other in lists if name in lists[other]])
    ]
    return [*unequal, *_unpacked(everything)]


def _kept(file: str, mark: str, ending: str) -> set[str]:
    """The folders that an ignore file keeps by lines of this form; what has a dot is a file."""
    lines = _text(file).splitlines()
    found = {line.removeprefix(mark) for line in lines if line.startswith(mark) and line.endswith(ending)}
    return {name for line in found if re.fullmatch(r"[\w-]+", name := line.removesuffix(ending))}


def _text(file: str) -> str:
    """What a file of the project holds; one that is not there names nothing."""
    path = ROOT / file
    return path.read_text(encoding="utf-8-sig") if path.exists() else ""


def _unpacked(packages: set[str]) -> Iterator[str]:
    """The imports of what lies beside jobs/, which a laptop finds and no host gets."""
    for file in sorted((ROOT / "jobs").rglob("*.py")):
        for name in sorted(_imported(file) - packages):
            if (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file():
                yield (
                    f"{file.relative_to(ROOT).as_posix()} imports {name}, which is packed for no host. Move it into "
                    f"jobs/; or make it a package and name it in pyproject.toml (packages.find, include), in "
                    f".funcignore (!/{name}/ and !/{name}/**) and in .dockerignore (!{name})."
                )


def _imported(file: Path) -> set[str]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8-sig"))
    except (SyntaxError, ValueError):
        return set()  # the manifest's check says it better
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _manifest() -> list[str]:
    command = [_python(), "-m", "runonce", "manifest", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    said = [
        text.removeprefix("error: ") for text in (done.stderr.strip() or done.stdout.strip()).splitlines()
    ]
    if "ModuleNotFoundError" in done.stderr:
        install = "python3 -m venv .venv, then .venv/bin/python -m pip install -r requirements.txt"
        return [f"{said[-1]}: {install} (on Windows: .venv\\Scripts\\python)"]
    return said or [f"`runonce manifest --check` ended with {done.returncode}."]


def _python() -> str:
    """The project's own environment where there is one; azd knows nothing of it."""
    for place in ("bin/python", "Scripts/python.exe"):
        if (ROOT / ".venv" / place).exists():
            return str(ROOT / ".venv" / place)
    return sys.executable


def _listed(kind: str) -> list[dict[str, Any]]:
    try:
        listed: list[dict[str, Any]] = json.loads(_text("infra/jobs.json"))[kind]
    except (ValueError, KeyError):
        return []  # the manifest's own check says what is wrong
    return listed


def warnings(env: dict[str, str]) -> list[str]:
    """What may be meant."""
    if hosting_path(env) == "jobs":
        return []
    unknown = _provider(env, unknown=True)
    try:
        host = _host_json(_text("host.json"))
        limit = _seconds(host.get("functionTimeout", "00:30:00"))
        bus = host.get("extensions", {}).get("serviceBus", {})
        renewed = _seconds(bus.get("maxAutoLockRenewalDuration", "00:05:00"))
    except (ValueError, AttributeError) as error:
        return [*unknown, f"host.json is not readable, so its time limits were not looked at: {error}"]
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
    return [*unknown, *too_long, *unlocked]


def doctor(env: dict[str, str]) -> list[str]:
    """What `runonce doctor` finds in the project and in the settings it gets; of host.json there are warnings above."""
    bus = env.get("RUNONCE_TRANSPORT", "").strip() != "storage"
    settings = {
        **{name: value for name, value in env.items() if value},
        "RUNONCE_NAMESPACE": _named(env),
        "RUNONCE_STORAGE": "",
        "RUNONCE_STORAGE__accountName": "is-yet-to-be-made",
        "RUNONCE_SERVICEBUS": "",
        "RUNONCE_SERVICEBUS__fullyQualifiedNamespace": "is-yet-to-be-made" * bus,
    }
    command = [_python(), "-m", "runonce", "doctor", "--offline", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    try:
        checks = json.loads(done.stdout)["checks"]
    except (ValueError, KeyError):
        return [f"`runonce doctor --offline` ended with {done.returncode}: {done.stderr.strip()}"]
    return [found["text"] for one in checks if one["area"] != "host.json" for found in one["findings"]]


def _host_json(text: str) -> dict[str, Any]:
    """As the Functions host reads it: with comments, and commas before a closing bracket."""
    string = r'("(?:[^"\\]|\\.)*")'
    for left_out in (r"//[^\n]*|/\*.*?\*/", r",(?=\s*[}\]])"):
        text = re.sub(rf"{string}|{left_out}", lambda found: found[1] or "", text, flags=re.DOTALL)
    read: dict[str, Any] = json.loads(text)
    return read


def _seconds(clock: str) -> float:
    """What a duration of host.json is, as hh:mm:ss or d.hh:mm:ss; -1 is no limit."""
    if str(clock) == "-1":
        return math.inf
    found = re.fullmatch(r"(?:(\d+)\.)?(\d+):(\d+):(\d+)(?:\.\d+)?", str(clock))
    if found is None:
        raise ValueError(f"{clock!r} is no duration, such as 00:30:00")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def tell_azd(env: dict[str, str]) -> None:
    """Set what azure.yaml's conditions ask for, and once when a budget begins, which cannot change later."""
    azd, chosen = shutil.which("azd"), hosting_path(env)
    if azd is None or not env.get("AZURE_ENV_NAME"):
        return
    wanted = {
        "DEPLOY_FUNCTIONS": str(chosen != "jobs").lower(),
        "DEPLOY_JOBS": str(chosen != "functions").lower(),
    }
    if env.get("MONTHLY_BUDGET", "0").strip() not in ("", "0") and not env.get("BUDGET_START"):
        wanted["BUDGET_START"] = time.strftime("%Y-%m-01", time.gmtime())
    for name, value in wanted.items():
        command = [azd, "env", "set", name, value, "--environment", env["AZURE_ENV_NAME"]]
        subprocess.run(command, cwd=ROOT, check=True)


def main() -> int:
    """Check; 1 when something is wrong."""
    env = dict(os.environ)
    found = problems(env)
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if found:
        return 1
    for warning in [*warnings(env), *doctor(env)]:
        print(f"warning: {warning}", file=sys.stderr)
    tell_azd(env)
    print(f"checked: jobs.json is up to date, hosting path {hosting_path(env)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
