"""What a parameter changes: where it runs, what is there already, how much, and how it is updated."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.bicep import parse, text_of
from tests.support.infrastructure import INFRA, ROOT, environment_of, parameters_from, settings_of

if TYPE_CHECKING:
    from tests.support.bicep import Deployment, Resource
    from tests.support.infrastructure import Infrastructure

SUBSCRIPTION = "/subscriptions/11111111-2222-3333-4444-555555555555"
SHARED = f"{SUBSCRIPTION}/resourceGroups/rg-shared/providers"
SUBNETS = f"{SHARED}/Microsoft.Network/virtualNetworks/hub/subnets"
THERE = {
    "storageAccount": f"{SHARED}/Microsoft.Storage/storageAccounts/stshared",
    "logAnalytics": f"{SHARED}/Microsoft.OperationalInsights/workspaces/log-shared",
    "functionsSubnet": f"{SUBNETS}/flex",
    "jobsSubnet": f"{SUBNETS}/aca",
    "endpointsSubnet": f"{SUBNETS}/pe",
    "dnsZonesGroup": f"{SUBSCRIPTION}/resourceGroups/rg-dns",
}


def app(made: Deployment) -> Resource:
    return made.one("Microsoft.Web/sites")


def decorated(parameter: str) -> str:
    """The decorators of a parameter of main.bicep, as text."""
    before = ""
    for node in parse(INFRA / "main.bicep").named_children:
        if node.type == "parameter_declaration" and f"param {parameter} " in text_of(node):
            return before
        before = text_of(node) if node.type == "decorators" else ""
    raise AssertionError(parameter)


# -- regions ---------------------------------------------------------------------------------------------------


def regions() -> list[str]:
    return re.findall(r"'([a-z0-9]+)'", decorated("location").partition("@metadata")[0])


def test_a_person_is_offered_the_regions_that_have_it_all() -> None:
    """azd asks for the region from the list of those that offer Flex Consumption."""
    assert "type: 'location'" in decorated("location")
    assert len(regions()) > 20
    assert "westeurope" in regions()


def test_every_region_takes_the_storage_it_is_given(sample: Infrastructure) -> None:
    """Storage is zone-redundant where a region has zones, locally redundant where it has none, and as told if told."""
    skus = {
        region: sample.main("functions", location=region)
        .one("Microsoft.Storage/storageAccounts")
        .body["sku"]["name"]
        for region in regions()
    }
    without = {"australiasoutheast", "northcentralus", "southindia", "ukwest", "westcentralus", "westus"}
    assert {region for region, sku in skus.items() if sku == "Standard_LRS"} == without
    assert {sku for region, sku in skus.items() if region not in without} == {"Standard_ZRS"}
    made = sample.main("functions", location="westus", storageSku="Standard_GRS")
    assert made.one("Microsoft.Storage/storageAccounts").body["sku"]["name"] == "Standard_GRS"


@pytest.mark.parametrize("zones", [False, True])
def test_zones_are_one_choice(sample: Infrastructure, zones: bool) -> None:
    """One parameter spreads over zones whatever can be: the plan, the environment and the registry of a network."""
    made = sample.main("both", zoneRedundant=zones, useVirtualNetwork=True)
    assert made.one("Microsoft.Web/serverfarms").properties["zoneRedundant"] is zones
    assert made.one("Microsoft.App/managedEnvironments").properties["zoneRedundant"] is zones
    registry = made.one("Microsoft.ContainerRegistry/registries").properties["zoneRedundancy"]
    assert registry == ("Enabled" if zones else "Disabled")


def test_without_a_network_an_environment_and_a_basic_registry_have_no_zones(sample: Infrastructure) -> None:
    """What zones are not offered for does not make the deployment fail."""
    made = sample.main("both", zoneRedundant=True)
    assert made.one("Microsoft.App/managedEnvironments").properties["zoneRedundant"] is False
    assert made.one("Microsoft.ContainerRegistry/registries").properties["zoneRedundancy"] == "Disabled"


# -- what is there already -------------------------------------------------------------------------------------


def test_what_is_there_is_used_and_not_made(sample: Infrastructure) -> None:
    """A given account, workspace, network and zones are used by everything, and none of their kind is made."""
    made = sample.main("both", there=THERE, useVirtualNetwork=True)
    for kind in (
        "Microsoft.Storage/storageAccounts",
        "Microsoft.OperationalInsights/workspaces",
        "Microsoft.Network/virtualNetworks",
        "Microsoft.Network/privateDnsZones",
    ):
        assert not made.of(kind), kind
    assert app(made).properties["virtualNetworkSubnetId"] == THERE["functionsSubnet"]
    environment = made.one("Microsoft.App/managedEnvironments").properties
    assert environment["vnetConfiguration"]["infrastructureSubnetId"] == THERE["jobsSubnet"]
    endpoints = made.of("Microsoft.Network/privateEndpoints")
    assert {e.properties["subnet"]["id"] for e in endpoints} == {THERE["endpointsSubnet"]}
    zones = {
        c["properties"]["privateDnsZoneId"].rpartition("/providers/")[0]
        for g in made.of("Microsoft.Network/privateEndpoints/privateDnsZoneGroups")
        for c in g.properties["privateDnsZoneConfigs"]
    }
    assert zones == {THERE["dnsZonesGroup"]}
    workspaces = {d.properties["workspaceId"] for d in made.of("Microsoft.Insights/diagnosticSettings")}
    assert workspaces == {THERE["logAnalytics"]}
    rules = made.of("Microsoft.Insights/scheduledQueryRules")
    assert {tuple(r.properties["scopes"]) for r in rules} == {(THERE["logAnalytics"],)}


def test_two_regions_share_an_account(sample: Infrastructure) -> None:
    """Two environments given one account and one namespace use the same rows, and a package container each."""
    west, north = (
        sample.main(
            "functions", environmentName=f"shop-{region}", location=region, namespace="shop", there=THERE
        )
        for region in ("westeurope", "northeurope")
    )

    def names(made: Deployment, kind: str) -> set[str]:
        return {r.name for r in made.of(f"Microsoft.Storage/storageAccounts/{kind}")}

    for kind in ("tableServices/tables", "queueServices/queues"):
        assert names(west, kind) == names(north, kind)
        assert all(name.startswith("stshared/") for name in names(west, kind))
    blobs = "blobServices/containers"
    assert len(names(west, blobs) ^ names(north, blobs)) == 2, "each app deploys its own package"
    uri = "AzureWebJobsStorage__tableServiceUri"
    assert settings_of(west)[uri] == settings_of(north)[uri] == "https://stshared.table.core.windows.net"


def test_an_account_that_is_there_keeps_its_own_settings(sample: Infrastructure) -> None:
    """Of a given account nothing is changed but the containers, tables and queues that the toolkit needs."""
    made = sample.main("both", there=THERE)
    of_storage = {r.type.rpartition("/")[2] for r in made.resources if "Storage" in r.type and not r.existing}
    assert of_storage == {"containers", "tables", "queues"}


@pytest.mark.parametrize("given", ["functionApp", "storageAccount", "serviceBusNamespace", "resourceGroup"])
def test_a_name_can_be_given(sample: Infrastructure, given: str) -> None:
    """A given name takes the place of the made-up one wherever it stands; an empty one does not."""
    names = json.loads((INFRA / "main.parameters.json").read_text())["parameters"]["names"]["value"]
    as_azd = dict.fromkeys(names, "")
    before = sample.main("both", names=as_azd)
    assert before.outputs == sample.main("both").outputs
    after = sample.main("both", names={**as_azd, given: "given1"})
    kinds = {
        "functionApp": "Microsoft.Web/sites",
        "storageAccount": "Microsoft.Storage/storageAccounts",
        "serviceBusNamespace": "Microsoft.ServiceBus/namespaces",
        "resourceGroup": "Microsoft.Resources/resourceGroups",
    }
    assert after.one(kinds[given]).name == "given1"
    old = before.one(kinds[given]).name
    assert not [r.name for r in after.resources if old in r.id.split("/")]


def test_every_name_that_is_made_up_can_be_given() -> None:
    """The parameter file, the type and the made-up names have the same keys."""
    text = (INFRA / "main.bicep").read_text()
    made_up = set(re.findall(r"^    (\w+): '\$\{abbreviations", text, re.MULTILINE))
    given = json.loads((INFRA / "main.parameters.json").read_text())["parameters"]["names"]["value"]
    typed = (INFRA / "types.bicep").read_text().partition("type resourceNames = {")[2].partition("}")[0]
    assert made_up == set(given) == set(re.findall(r"^  (\w+): string\?$", typed, re.MULTILINE))


# -- how much --------------------------------------------------------------------------------------------------


def test_the_defaults_cost_little(sample: Infrastructure) -> None:
    """Small instances, a small recovery, a cap on logs and old images that go: each a parameter with its default."""
    made, jobs = sample.main("both"), sample.jobs()
    scale = app(made).properties["functionAppConfig"]["scaleAndConcurrency"]
    assert scale == {"instanceMemoryMB": 512, "maximumInstanceCount": 40}
    workspace = made.one("Microsoft.OperationalInsights/workspaces").properties
    assert workspace["workspaceCapping"]["dailyQuotaGb"] == 1
    sizes = {
        job.properties["template"]["containers"][0]["name"]: job.properties["template"]["containers"][0][
            "resources"
        ]
        for job in jobs.of("Microsoft.App/jobs")
    }
    assert sizes["recover"] == {"cpu": 0.25, "memory": "0.5Gi"}
    assert sizes["run"] == sizes["work"] == {"cpu": 0.5, "memory": "1Gi"}
    assert made.one("Microsoft.ContainerRegistry/registries/tasks")


@pytest.mark.parametrize(("cap", "quota"), [(5, 5), (0, -1)])
def test_the_log_is_capped_as_told(sample: Infrastructure, cap: int, quota: int) -> None:
    """The cap is in GB a day; nought is none."""
    workspace = sample.main("jobs", logCapGB=cap).one("Microsoft.OperationalInsights/workspaces")
    assert workspace.properties["workspaceCapping"]["dailyQuotaGb"] == quota


def test_old_images_go(sample: Infrastructure) -> None:
    """Once a week the registry removes what is older than a month, and keeps the newest of each name."""
    import base64  # noqa: PLC0415 - only here

    import yaml  # noqa: PLC0415

    task = sample.main("jobs", imagesKept=7).one("Microsoft.ContainerRegistry/registries/tasks").properties
    (step,) = yaml.safe_load(base64.b64decode(task["step"]["encodedTaskContent"]))["steps"]
    assert step["cmd"].startswith("acr purge ")
    assert "--keep 7 " in step["cmd"]
    assert "--untagged" in step["cmd"]
    assert len(task["trigger"]["timerTriggers"]) == 1


def test_at_most_one_instance_is_allowed() -> None:
    """A small limit protects a database; the platform's smallest figure is one."""
    assert "@minValue(1)\n" in decorated("maximumInstanceCount")


# -- how it is updated -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["Recreate", "RollingUpdate"])
def test_a_deployment_updates_the_site_once(sample: Infrastructure, strategy: str) -> None:
    """The settings are part of the site, not a second update of it, and the strategy is a parameter."""
    made = sample.main("functions", siteUpdateStrategy=strategy)
    assert app(made).properties["functionAppConfig"]["siteUpdateStrategy"] == {"type": strategy}
    assert not made.of("Microsoft.Web/sites/config")
    assert settings_of(made)["RUNONCE_NAMESPACE"] == "runonce-shop-production"


# -- diagnostics -----------------------------------------------------------------------------------------------

SPARED = {
    "Microsoft.Insights/components": "is the log itself",
    "Microsoft.ManagedIdentity/userAssignedIdentities": "has none",
    "Microsoft.Web/serverfarms": "has figures of the app only",
    "Microsoft.Network/privateDnsZones": "has none",
    "Microsoft.Network/privateEndpoints": "has figures only",
    "Microsoft.Insights/actionGroups": "has none",
    "Microsoft.Insights/scheduledQueryRules": "has none",
    "Microsoft.Insights/metricAlerts": "has none",
    "Microsoft.Insights/workbooks": "has none",
    "Microsoft.Resources/resourceGroups": "has none",
}


def test_every_resource_has_a_diagnostic_setting(sample: Infrastructure) -> None:
    """Each resource that logs, sends its log or its figures to the workspace."""
    made = sample.main("both", useVirtualNetwork=True)
    watched = {d.body["scope"] for d in made.of("Microsoft.Insights/diagnosticSettings")}
    workspace = made.one("Microsoft.OperationalInsights/workspaces").id
    targets = {d.properties["workspaceId"] for d in made.of("Microsoft.Insights/diagnosticSettings")}
    assert {f"/{target.partition('/providers/')[2]}" for target in targets} == {workspace}
    top = [r for r in made.resources if not r.existing and r.type.count("/") == 1 and "scope" not in r.body]
    left = {r.type for r in top if r.id not in watched}
    assert left == set(SPARED)


# -- the jobs' sizes -------------------------------------------------------------------------------------------


def test_a_job_has_the_size_it_asks_for(sample: Infrastructure) -> None:
    """What the manifest says of the size of one, be it a job, a handler or recovery, goes before the parameters."""
    file = sample.folder / "jobs.json"
    for text, expected in (
        ("", {(0.5, "1Gi"), (0.25, "0.5Gi")}),
        ("2", {(2, "4Gi"), (0.5, "1Gi"), (0.25, "0.5Gi")}),
    ):
        manifest = json.loads(file.read_text())
        for kind in ("jobs", "handlers"):
            manifest[kind][0] |= {"cpu": text, "memory": text and "4Gi"}
        file.write_text(json.dumps(manifest))
        made = [
            job.properties["template"]["containers"][0]["resources"]
            for job in sample.jobs().of("Microsoft.App/jobs")
        ]
        assert {(size["cpu"], size["memory"]) for size in made} == expected
        assert [size["memory"] for size in made].count("4Gi") == (2 if text else 0)
    manifest["recovery"] |= {"cpu": "1", "memory": "2Gi"}
    file.write_text(json.dumps(manifest))
    sizes = {
        job.properties["template"]["containers"][0]["name"]: job.properties["template"]["containers"][0][
            "resources"
        ]
        for job in sample.jobs().of("Microsoft.App/jobs")
    }
    assert sizes["recover"] == {"cpu": 1, "memory": "2Gi"}


def test_a_handler_has_as_many_executions_as_told(sample: Infrastructure) -> None:
    """A limit on executions protects what they call, as one on instances does."""
    for job in sample.jobs(maxExecutions="3").of("Microsoft.App/jobs"):
        trigger = job.properties["configuration"].get("eventTriggerConfig")
        assert trigger is None or trigger["scale"]["maxExecutions"] == 3


def test_every_parameter_is_explained() -> None:
    """docs/infrastructure.md has a row for each variable of the parameter files that a person sets, and no other."""
    text = "".join((INFRA / f"{name}.parameters.json").read_text() for name in ("main", "jobs"))
    settings = json.loads((INFRA / "main.parameters.json").read_text())["parameters"]["appSettings"]["value"]
    by_azd = {"AZURE_ENV_NAME", "AZURE_LOCATION", "AZURE_PRINCIPAL_ID", "AZURE_PRINCIPAL_TYPE"}
    parameters = {
        name for name, default in re.findall(r"\$\{(\w+)(=?)", text) if default and name not in settings
    }
    page = (ROOT / "docs" / "infrastructure.md").read_text()
    page = page.partition("## Parameters")[2].partition("### Diagnostic")[0]
    rows = {
        name
        for row in re.findall(r"^\|([^|]+)\|", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    given = {"AZURE_SERVICEBUS_NAMESPACE", "AZURE_SERVICEBUS_HOST"}  # by provisioning
    assert rows == parameters - by_azd - given


def test_sizes_are_taken_from_the_environment() -> None:
    """What an execution may use is set with `azd env set`, for the jobs and for recovery."""
    names = dict.fromkeys(re.findall(r"\$\{(\w+)", (INFRA / "jobs.parameters.json").read_text()), "")
    sizes = {"JOBS_CPU": "2", "JOBS_MEMORY": "4Gi", "RECOVERY_CPU": "1", "RECOVERY_MEMORY": "2Gi"}
    taken = parameters_from("jobs.parameters.json", {**names, **sizes})
    assert [taken[k] for k in ("cpu", "memory", "recoveryCpu", "recoveryMemory")] == list(sizes.values())


def test_no_time_zone_is_set_on_any_host(sample: Infrastructure) -> None:
    """Neither host is given a time zone: each would move every timer by it, and the code knows the jobs' zones."""
    made = {*settings_of(sample.main("both"))}
    for job in sample.jobs().of("Microsoft.App/jobs"):
        made |= set(environment_of(job))
    assert not made & {"TZ", "WEBSITE_TIME_ZONE"}
    assert "WEBSITE_TIME_ZONE" in (ROOT / "docs" / "deploy.md").read_text()
