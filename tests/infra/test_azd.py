"""azure.yaml, the check before provisioning, and the workflows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.bicep import parse, text_of
from tests.support.infrastructure import INFRA, ROOT

if TYPE_CHECKING:
    from types import ModuleType

CHECK = INFRA / "hooks" / "check.py"


@pytest.fixture(scope="module")
def azure_yaml() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "azure.yaml").read_text(encoding="utf-8"))


def change(check: ModuleType, kind: str, **values: Any) -> None:
    file = check.ROOT / "infra" / "jobs.json"
    manifest = json.loads(file.read_text())
    manifest[kind][0].update(values)
    file.write_text(json.dumps(manifest))


# -- azure.yaml -------------------------------------------------------------------------------------------------


def test_one_value_chooses_what_is_deployed(azure_yaml: dict[str, Any]) -> None:
    """Both services are there, each under a condition that the check and the templates set from HOSTING_PATH."""
    services = azure_yaml["services"]
    assert (services["functions"]["host"], services["jobs"]["host"]) == ("function", "containerapp")
    outputs = {
        text_of(next(c for c in node.named_children if c.type == "identifier"))
        for node in parse(INFRA / "main.bicep").named_children
        if node.type == "output_declaration"
    }
    for name, service in services.items():
        (condition,) = re.findall(r"^\$\{(\w+)\}$", service["condition"])
        assert condition == f"DEPLOY_{name.upper()}"
        assert condition in outputs
        assert condition in CHECK.read_text()


def test_the_jobs_module_and_the_dockerfile_are_there(azure_yaml: dict[str, Any]) -> None:
    """What azure.yaml names exists: the module with its parameters, the Dockerfile, the hooks' script."""
    jobs = azure_yaml["services"]["jobs"]
    assert (INFRA / f"{jobs['module']}.bicep").is_file()
    parameters = (INFRA / f"{jobs['module']}.parameters.json").read_text()
    assert "${SERVICE_JOBS_IMAGE_NAME}" in parameters, "named after the service"
    assert (ROOT / jobs["docker"]["path"]).is_file()
    for hook in azure_yaml["hooks"].values():
        for system in ("posix", "windows"):
            assert (ROOT / hook[system]["run"].split()[-1]).is_file()


# -- the check before provisioning ------------------------------------------------------------------------------


def test_all_is_well_as_it_is(check: ModuleType) -> None:
    """The repository passes its own check, on each path."""
    for path in ("", "functions", "jobs", "both"):
        assert check.problems({"HOSTING_PATH": path, "AZURE_ENV_NAME": "shop-test"}) == []


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"HOSTING_PATH": "function"}, "HOSTING_PATH='function' is not one of functions, jobs, both"),
        ({"RUNONCE_NAMESPACE": "Shop"}, "'Shop' is not 3 to 40 lower-case letters"),
        ({"AZURE_ENV_NAME": "a" * 40}, "choose another environment name"),
        ({"AZURE_ENV_NAME": "shop--x"}, "'runonce-shop--x'"),
    ],
)
def test_a_wrong_value_is_named_with_its_remedy(check: ModuleType, env: dict[str, str], said: str) -> None:
    """A path or a namespace that cannot work is refused before anything is made, with what to do."""
    (problem,) = check.problems(env)
    assert said in problem


def test_a_job_that_container_apps_cannot_take_is_refused_there_only(check: ModuleType) -> None:
    """With Container Apps alone a refused schedule would never run, so it stands against provisioning."""
    change(check, "jobs", container_apps_cron="", container_apps_refusal="Job 'x': use second 0.")
    assert "Job 'x': use second 0." in check.problems({"HOSTING_PATH": "jobs"})[0]
    assert check.problems({"HOSTING_PATH": "both"}) == []


def test_a_schedule_that_container_apps_would_not_have_is_refused_there_only(check: ModuleType) -> None:
    """A setting with another schedule than the manifest's is an error where Container Apps runs the job."""
    change(check, "jobs", schedule="0 0 3 * * *", schedule_setting="NIGHTLY_SCHEDULE")
    for given, refused in (("0 0 4 * * *", True), ("0  0 3 * * *", False), ("", False)):
        env = {"NIGHTLY_SCHEDULE": given, "AZURE_ENV_NAME": "shop-test"}
        for path in ("jobs", "both"):
            found = check.problems({**env, "HOSTING_PATH": path})
            assert bool(found) is refused
            assert all(
                "NIGHTLY_SCHEDULE='0 0 4 * * *'" in text and "write it as default=" in text for text in found
            )
        assert check.problems({**env, "HOSTING_PATH": "functions"}) == []


def test_what_may_be_meant_is_a_warning(check: ModuleType) -> None:
    """A time limit beyond the Functions host's own is told, and does not matter on Container Apps alone."""
    change(check, "jobs", name="slow", max_runtime=7200)
    change(check, "handlers", name="slow_handler", max_runtime=7200)
    said = "\n".join(check.warnings({"HOSTING_PATH": "both"}))
    assert "slow may take 7200 s" in said
    assert "slow_handler may take 7200 s" in said
    assert check.warnings({"HOSTING_PATH": "jobs"}) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"functionTimeout": "00:10:00", // short\n}', "slow may take 1800 s"),
        ('{/* none */ "functionTimeout": "-1", "note": "a // b ,]"}', None),
        ('{"functionTimeout": "1.00:00:00",}', None),
        ("{}", None),
        ('{"functionTimeout": "ten"}', "'ten' is no duration"),
        ("[1, 2", "host.json is not readable"),
    ],
)
def test_host_json_is_read_as_the_host_reads_it(check: ModuleType, text: str, said: str | None) -> None:
    """Comments and trailing commas, days and no limit, and what is left out are read; a mistake is told, no more."""
    change(check, "jobs", name="slow", max_runtime=1800)
    (check.ROOT / "host.json").write_text(text)
    warned = [w for w in check.warnings({}) if "slow" in w or "host.json is not" in w]
    assert bool(warned) is (said is not None)
    assert said is None or said in warned[0]


def test_azd_is_told_what_to_deploy(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check sets the conditions of azure.yaml from the one value that was chosen."""
    told: list[list[str]] = []
    monkeypatch.setattr(check.shutil, "which", lambda _: "azd")
    monkeypatch.setattr(check.subprocess, "run", lambda command, **_: told.append(command))
    check.tell_azd({"HOSTING_PATH": "both", "AZURE_ENV_NAME": "shop"})
    check.tell_azd({"AZURE_ENV_NAME": "shop"})
    assert [command[3:5] for command in told] == [
        ["DEPLOY_FUNCTIONS", "true"],
        ["DEPLOY_JOBS", "true"],
        ["DEPLOY_FUNCTIONS", "true"],
        ["DEPLOY_JOBS", "false"],
    ]


@pytest.mark.parametrize(
    ("env", "refused"),
    [
        ({"DEPLOYED_NAMESPACE": "shop-1", "RUNONCE_NAMESPACE": "shop-1"}, False),
        ({"DEPLOYED_NAMESPACE": "shop-1", "RUNONCE_NAMESPACE": "shop-2"}, True),
        ({"DEPLOYED_NAMESPACE": "shop-1", "AZURE_ENV_NAME": "shop"}, True),
        ({"DEPLOYED_NAMESPACE": "runonce-shop", "AZURE_ENV_NAME": "shop"}, False),
        (
            {"DEPLOYED_NAMESPACE": "shop-1", "RUNONCE_NAMESPACE": "shop-2", "REPLACE_NAMESPACE": "shop-1"},
            False,
        ),
        (
            {"DEPLOYED_NAMESPACE": "shop-2", "RUNONCE_NAMESPACE": "shop-3", "REPLACE_NAMESPACE": "shop-1"},
            True,
        ),
        ({"RUNONCE_NAMESPACE": "shop-1"}, False),
    ],
)
def test_what_is_deployed_keeps_its_namespace(check: ModuleType, env: dict[str, str], refused: bool) -> None:
    """Another namespace than the deployed one would run everything again: it is refused until asked for by name."""
    said = check.problems(env)
    assert bool(said) is refused
    if refused:
        assert f"azd env set REPLACE_NAMESPACE {env['DEPLOYED_NAMESPACE']}" in said[0]
        assert f"azd env set RUNONCE_NAMESPACE {env['DEPLOYED_NAMESPACE']}" in said[0]


@pytest.mark.parametrize(
    ("state", "path", "private", "refused"),
    [
        ("NotRegistered", "functions", "true", True),
        ("Registered", "functions", "true", False),
        ("NotRegistered", "functions", "false", False),
        ("NotRegistered", "both", "true", False),
    ],
)
def test_a_provider_that_only_a_subnet_needs_must_be_registered(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, state: str, path: str, private: str, refused: bool
) -> None:
    """Functions in a virtual network need Microsoft.App, which no resource of that path would register."""
    answer = subprocess.CompletedProcess([], 0, stdout=f"{state}\n")
    monkeypatch.setattr(check.shutil, "which", lambda _: "az")
    monkeypatch.setattr(check.subprocess, "run", lambda *_, **__: answer)
    said = check.problems({"HOSTING_PATH": path, "USE_VIRTUAL_NETWORK": private})
    assert bool(said) is refused
    assert not said or "az provider register --namespace Microsoft.App" in said[0]


def test_a_provider_that_nobody_can_be_asked_about_is_a_warning(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the Azure CLI the command is told, and nothing is refused."""
    monkeypatch.setattr(check.shutil, "which", lambda _: None)
    env = {"HOSTING_PATH": "functions", "USE_VIRTUAL_NETWORK": "true"}
    assert check.problems(env) == []
    assert any("az provider register" in said for said in check.warnings(env))


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, False),
        ({"MONTHLY_BUDGET": "0"}, False),
        ({"MONTHLY_BUDGET": "50"}, True),
        ({"MONTHLY_BUDGET": "50", "BUDGET_START": "2026-11-01"}, False),
    ],
)
def test_a_budget_begins_once(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], told: bool
) -> None:
    """The first day of a budget is set when there is a budget and none was set, since Azure does not let it move."""
    commands: list[list[str]] = []
    monkeypatch.setattr(check.shutil, "which", lambda _: "azd")
    monkeypatch.setattr(check.subprocess, "run", lambda command, **_: commands.append(command))
    check.tell_azd({"AZURE_ENV_NAME": "shop", **env})
    starts = [command[4] for command in commands if command[3] == "BUDGET_START"]
    assert bool(starts) is told
    assert all(re.fullmatch(r"\d{4}-\d\d-01", start) for start in starts)


@pytest.mark.slow
def test_it_runs_as_azd_runs_it() -> None:
    """Started as a script it checks the manifest against the code, and ends with 0 or with 1 and the reason.

    What `runonce doctor` finds is a warning.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AZURE", "RUNONCE", "HOSTING"))
    }
    good = subprocess.run([sys.executable, CHECK], env=env, capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    assert "warning" not in good.stderr
    odd = {**env, "RUNONCE_HISTORY_DAY": "30", "RUNONCE_CLAIM_LEASE": "900"}
    told = subprocess.run([sys.executable, CHECK], env=odd, capture_output=True, text=True, check=False)
    assert told.returncode == 0
    assert "warning: RUNONCE_HISTORY_DAY is no setting of runonce" in told.stderr
    assert "warning: Handler 'send_invoice': the broker knows a repeated id for 600 s" in told.stderr
    bad = subprocess.run(
        [sys.executable, CHECK], env={**env, "HOSTING_PATH": "x"}, capture_output=True, text=True, check=False
    )
    assert (bad.returncode, "azd env set HOSTING_PATH" in bad.stderr) == (1, True)


# -- the development container ---------------------------------------------------------------------------------


def test_the_development_container_has_the_tools() -> None:
    """The container brings Python 3.13, Node for the emulator, and what deploying needs."""
    made = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert ":3.13-" in made["image"]
    features = " ".join(made["features"])
    for tool in ("node", "azure-cli", "azd", "docker"):
        assert tool in features
