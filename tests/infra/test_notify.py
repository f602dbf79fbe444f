"""Where the webhook's address and that of the lease server are kept: in a Key Vault, read by the hosts' identities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.infrastructure import Infrastructure, environment_of, settings_of, with_jobs

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "https://shop.vault.azure.net/secrets/notify"
NAMES = {"notifyUrlSecret": "RUNONCE_NOTIFY_URL", "leasesSecret": "RUNONCE_LEASES"}
each = pytest.mark.parametrize(("parameter", "name"), NAMES.items())


@pytest.fixture
def infra(tmp_path: Path) -> Infrastructure:
    """Templates with a job and a handler of every kind."""
    return with_jobs(tmp_path)


def test_nobody_is_told_unless_asked_for(infra: Infrastructure) -> None:
    """Without the parameter neither host has the setting, nor a secret."""
    assert not set(NAMES.values()) & set(settings_of(infra.main("both")))
    for job in infra.jobs().of("Microsoft.App/jobs"):
        assert not set(NAMES.values()) & set(environment_of(job))
        assert job.properties["configuration"]["secrets"] == []


@each
def test_functions_reads_the_vault_with_its_identity(
    infra: Infrastructure, parameter: str, name: str
) -> None:
    """The setting is a reference, and the app says which of its identities reads it."""
    made = infra.main("functions", **{parameter: SECRET})
    assert settings_of(made)[name] == f"@Microsoft.KeyVault(SecretUri={SECRET})"
    site = made.one("Microsoft.Web/sites")
    (identity,) = site.body["identity"]["userAssignedIdentities"]
    assert site.properties["keyVaultReferenceIdentity"] == identity


@each
def test_each_container_apps_job_reads_the_vault_with_the_jobs_identity(
    infra: Infrastructure, parameter: str, name: str
) -> None:
    """A job, a handler and recovery: a secret by its address, and a variable that names the secret."""
    jobs = infra.jobs(**{parameter: SECRET}).of("Microsoft.App/jobs")
    assert len(jobs) > 3
    for job in jobs:
        (secret,) = job.properties["configuration"]["secrets"]
        assert (secret["keyVaultUrl"], "value" in secret) == (SECRET, False)
        assert secret["identity"] in job.body["identity"]["userAssignedIdentities"]
        (container,) = job.properties["template"]["containers"]
        assert {"name": name, "secretRef": secret["name"]} in container["env"]
