"""The GitHub workflows: what they pass on, when they deploy, and whom they trust."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

import dev
from tests.support.bicep import parse, text_of
from tests.support.infrastructure import INFRA, ROOT

FOLDER = ROOT / ".github" / "workflows"
FROM_AZD = {"AZURE_PRINCIPAL_ID", "SERVICE_JOBS_IMAGE_NAME"}
"""What azd itself knows while it runs."""


def workflow(name: str) -> dict[str, Any]:
    read = yaml.safe_load((FOLDER / f"{name}.yml").read_text(encoding="utf-8"))
    return {"on": read.pop(True), **read}  # YAML takes `on` for a truth value


def parameters() -> dict[str, str]:
    """The variables that the parameter files name, with their defaults; those that provisioning gives left out."""
    text = "".join((INFRA / f"{name}.parameters.json").read_text() for name in ("main", "jobs"))
    outputs = {
        text_of(next(c for c in node.named_children if c.type == "identifier"))
        for node in parse(INFRA / "main.bicep").named_children
        if node.type == "output_declaration"
    }
    found = dict(re.findall(r"\$\{(\w+)=?([^}]*)\}", text))
    given_here = {
        "AZURE_LOCATION",
        "RUNONCE_NAMESPACE",
    }  # outputs too, and yet to be said before anything is there
    return {n: default for n, default in found.items() if n in given_here or n not in outputs}


def test_every_parameter_is_passed_with_the_same_default() -> None:
    """What a parameter file takes from the environment, the workflow passes: nothing is reset by a push."""
    env = workflow("azure-dev")["env"]
    for name, default in parameters().items():
        if name in FROM_AZD:
            continue
        if name == "AZURE_PRINCIPAL_TYPE":
            assert env[name] == "ServicePrincipal"
            continue
        wanted = f"${{{{ vars.{name} || '{default}' }}}}" if default else f"${{{{ vars.{name} }}}}"
        assert env.get(name) == wanted, name


def test_nothing_is_passed_that_nobody_takes() -> None:
    """A variable of the workflow is a parameter, or what signing in takes."""
    signing_in = {"AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_SUBSCRIPTION_ID"}
    assert set(workflow("azure-dev")["env"]) == set(parameters()) - FROM_AZD | signing_in


def test_a_setting_of_the_jobs_has_one_place() -> None:
    """The jobs' own settings stand in one parameter file; jobs.bicep gets them from what main.bicep gives out."""
    jobs = json.loads((INFRA / "jobs.parameters.json").read_text())["parameters"]
    assert jobs["appSettings"]["value"] == "${JOB_SETTINGS}"


def test_main_is_deployed_only_when_its_tests_passed_and_somebody_may_say_no() -> None:
    """The deployment waits for the whole of ci.yml, and for whoever the environment asks."""
    made = workflow("azure-dev")
    deploy, ci = made["jobs"]["deploy"], made["jobs"]["ci"]
    assert ci["uses"] == "./.github/workflows/ci.yml"
    assert deploy["needs"] == "ci"
    assert deploy["environment"] == "production"
    assert "workflow_call" in workflow("ci")["on"]
    assert "push" not in workflow("ci")["on"], "main is tested once, by what deploys it"
    assert "vars.AZURE_CLIENT_ID != ''" in deploy["if"], "a fork has nothing to deploy to"


def test_a_pull_request_shows_what_would_change_and_deploys_nothing() -> None:
    """A pull request of this repository runs the preview, and no job that deploys runs for one."""
    jobs = workflow("azure-dev")["jobs"]
    runs = [step["run"] for step in jobs["preview"]["steps"] if "run" in step]
    assert any(run.startswith("azd provision --preview") for run in runs)
    assert "head.repo.full_name == github.repository" in jobs["preview"]["if"], "no token for a fork's code"
    for name, job in jobs.items():
        text = json.dumps(job)
        if "azd deploy" in text or re.search(r"azd provision(?! --preview)", text):
            assert "github.event_name != 'pull_request'" in job["if"], name


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yml")), ids=lambda f: f.name)
def test_an_action_is_a_commit(file: Any) -> None:
    """Each action of somebody else is named by its commit, with the version beside it; a tag can be moved."""
    for used in re.findall(r"uses: (.*)$", file.read_text(), re.MULTILINE):
        if not used.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used), used


def test_an_action_has_one_commit_everywhere() -> None:
    """The workflows agree on the commit of each action."""
    used = {
        u
        for f in FOLDER.glob("*.yml")
        for u in re.findall(r"uses: ([\w-]+/.*)$", f.read_text(), re.MULTILINE)
    }
    assert len(used) == len({one.partition("@")[0] for one in used})


def test_the_workflows_keep_no_secret_and_sign_in_where_they_must() -> None:
    """Signing in is by OIDC, in the jobs that need Azure or publish and in no other; no workflow reads a secret."""
    for file in FOLDER.glob("*.yml"):
        assert "secrets." not in file.read_text()
        read = workflow(file.stem)
        assert read["permissions"] == {"contents": "read"}
        for job in read["jobs"].values():
            runs = [step.get("run", "") for step in job.get("steps", [])]
            signs_in = any("azd auth login" in run or "twine upload" in run for run in runs)
            assert (job.get("permissions", {}).get("id-token") == "write") is signs_in


def test_a_release_is_a_tag_of_its_version_whose_tests_passed() -> None:
    """A tag is published after the whole of ci.yml, with the tools the tests use, and only as the version it names."""
    made = workflow("release")
    assert made["on"] == {"push": {"tags": ["v*"]}}
    assert made["jobs"]["ci"]["uses"] == "./.github/workflows/ci.yml"
    publish = made["jobs"]["publish"]
    assert (publish["needs"], publish["environment"]) == ("ci", "pypi")
    runs = [step["run"] for step in publish["steps"] if "run" in step]
    assert [run.split()[:3] for run in runs[:2]] == [["python", "-m", "pip"], ["python", "-m", "build"]]
    assert "-r requirements-release.txt" in runs[0]
    assert 'test -f "dist/runonce-${GITHUB_REF_NAME#v}.tar.gz"' in runs
    assert "twine upload" in runs[-1]


def test_ci_compiles_and_lints_both_templates() -> None:
    """What nothing here can do, the compiler does in CI: both templates are built and linted."""
    text = (FOLDER / "ci.yml").read_text()
    assert "az bicep build" in text
    assert "az bicep lint" in text
    for name in ("main", "jobs"):
        assert f"infra/{name}.bicep" in text


def test_what_runs_at_night_are_commands_there_are() -> None:
    """Each command of the nightly workflow is one that dev.py takes, and the long ones are all among them."""
    [job] = workflow("nightly")["jobs"].values()
    commands = [
        word
        for line in job["strategy"]["matrix"]["command"]
        for word in re.findall(r"python dev\.py ([^|;]+)", re.sub(r"\$\{\{.*?\}\}", "7", line))
    ]
    assert {dev.parse(command.split()).command for command in commands} == {
        "simulate",
        "mutate",
        "fuzz",
        "soak",
        "test",
    }
