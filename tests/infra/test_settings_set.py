"""Every setting the code reads is set where it is deployed and explained in docs/settings.md; and none besides."""

from __future__ import annotations

import ast
import re
from collections import UserDict
from typing import TYPE_CHECKING, Any

import pytest

from runonce.hosts.container_apps import fitted
from runonce.settings import Settings
from tests.support.infrastructure import ROOT, Infrastructure, environment_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FROM_THE_PLATFORM = {
    "CONTAINER_APP_JOB_NAME",
    "CONTAINER_APP_REPLICA_NAME",
    "WEBSITE_SITE_NAME",
    "WEBSITE_INSTANCE_ID",
}
ON_A_LAPTOP = {
    "RUNONCE_STORAGE",
    "RUNONCE_STORAGE__accountName",
    "AzureWebJobsStorage",
    "AzureWebJobsStorage__accountName",
    "RUNONCE_SERVICEBUS",
    "ServiceBusConnection",
    *(
        f"{connection}__{part}"
        for connection in (
            "RUNONCE_STORAGE",
            "AzureWebJobsStorage",
            "RUNONCE_SERVICEBUS",
            "ServiceBusConnection",
        )
        for part in ("tenantId", "clientSecret")
    ),
    "RUNONCE_LEADER",
}
"""Connection strings, the short form that only public Azure has, secrets, and what is for `runonce serve` alone: never
set where jobs are deployed."""
READ_BY_THE_FUNCTIONS_HOST = {
    "APPLICATIONINSIGHTS_CONNECTION_STRING",
    "APPLICATIONINSIGHTS_AUTHENTICATION_STRING",
}
STORAGE = {"__blobServiceUri": "b", "__queueServiceUri": "q", "__tableServiceUri": "t"}


class Recorded(UserDict[str, str]):
    """An environment that remembers what it was asked for."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def read_by_the_settings() -> set[str]:
    """Every name that Settings.from_env asks for, with the toolkit's names and with the Functions host's."""
    asked = set()
    for storage, bus in (
        ("RUNONCE_STORAGE", "RUNONCE_SERVICEBUS"),
        ("AzureWebJobsStorage", "ServiceBusConnection"),
    ):
        uris = {storage + suffix: f"https://{service}.example" for suffix, service in STORAGE.items()}
        env = Recorded({**uris, f"{bus}__fullyQualifiedNamespace": "host", "RUNONCE_NAMESPACE": "shop-test"})
        fitted(Settings.from_env(env), env)
        asked |= env.asked
    return asked


def read_in(file: Path) -> Iterator[str]:
    """The names a file asks os.environ for, given as text or by a constant of the file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
            argument = node.args[0]
            yield argument.value if isinstance(argument, ast.Constant) else constants[ast.unparse(argument)]
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            yield ast.literal_eval(node.slice)


def read_by_the_code() -> set[str]:
    experiments = (
        ROOT / "runonce" / "experiments"
    )  # they start processes of their own, and are never deployed
    files = [
        file
        for folder in ("runonce", "jobs")
        for file in (ROOT / folder).rglob("*.py")
        if experiments not in file.parents
    ]
    return read_by_the_settings() | {name for file in files for name in read_in(file)}


def set_where_deployed(infra: Infrastructure) -> set[str]:
    own = {
        name: "x"
        for name in read_by_the_code()
        if not name.startswith(("RUNONCE", "Azure", "Service", "AZURE"))
    }
    own = {
        name: value
        for name, value in own.items()
        if name not in FROM_THE_PLATFORM | READ_BY_THE_FUNCTIONS_HOST
    }
    secret = "https://shop.vault.azure.net/secrets/notify"
    vaulted = {"notifyUrlSecret": secret, "leasesSecret": secret}
    functions = settings_of(infra.main("both", appSettings=own, **vaulted))
    jobs = infra.jobs(app_settings=own, **vaulted).of("Microsoft.App/jobs")
    return {*functions, *(name for job in jobs for name in environment_of(job))}


@pytest.mark.slow
def test_every_setting_the_code_reads_is_set(sample: Infrastructure) -> None:
    """What the code asks the environment for is set by the templates, or is the platform's or a laptop's."""
    left = read_by_the_code() - set_where_deployed(sample) - FROM_THE_PLATFORM - ON_A_LAPTOP
    assert not left


@pytest.mark.slow
def test_nothing_is_set_that_nobody_reads(sample: Infrastructure) -> None:
    """What the templates set is read by the code, or by the Functions host."""
    left = set_where_deployed(sample) - read_by_the_code() - READ_BY_THE_FUNCTIONS_HOST
    assert not left


def test_the_jobs_own_settings_are_passed_on() -> None:
    """Each setting that a shipped job reads has its place in the parameter file, which is the only one."""
    own = {name for file in (ROOT / "jobs").glob("*.py") for name in read_in(file)}
    text = (ROOT / "infra" / "main.parameters.json").read_text(encoding="utf-8")
    assert own == set(re.findall(r'"([A-Z_]+)": "\$\{\1=\}"', text))


@pytest.mark.slow
def test_every_setting_is_explained(sample: Infrastructure) -> None:
    """docs/settings.md has a row for each setting that is read or set, and for no other."""
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = {
        name
        for row in re.findall(r"^\|([^|]+)\|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert rows == read_by_the_code() | set_where_deployed(sample)


def test_a_figure_of_the_platform_cannot_be_set_too_high() -> None:
    """On Container Apps a longer grace time is cut to what the platform leaves; elsewhere it is not."""
    env = {"RUNONCE_STORAGE": "UseDevelopmentStorage=true", "RUNONCE_SHUTDOWN_TIMEOUT": "45"}
    settings = Settings.from_env(env)
    assert fitted(settings, env).shutdown_timeout == 45
    assert fitted(settings, {**env, "CONTAINER_APP_JOB_NAME": "caj-report"}).shutdown_timeout == 20
