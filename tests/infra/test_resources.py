"""What would be made in Azure, worked out from the templates for each hosting path."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from runonce.hosts.container_apps import GRACE
from runonce.hosts.manifest import emulator_config
from runonce.messages.claim import MARGIN
from runonce.settings import Settings
from tests.support.bicep import Later, strings, text_of, walk
from tests.support.bicep import parse as parse_bicep
from tests.support.infrastructure import (
    FILES,
    INFRA,
    ROOT,
    Infrastructure,
    entities_read_by,
    environment_of,
    settings_of,
)

if TYPE_CHECKING:
    from tests.support.bicep import Deployment, Resource

JOB = "Microsoft.App/jobs"
QUEUE = "Microsoft.ServiceBus/namespaces/queues"
SUBSCRIPTION = "Microsoft.ServiceBus/namespaces/topics/subscriptions"
ROLE = "Microsoft.Authorization/roleAssignments"
LONGEST_LOCK = 300
KILLED_AFTER = 30
"""Seconds between SIGTERM and the kill of a Container Apps job."""


def seconds(duration: str) -> int:
    days, hours, minutes, rest = re.fullmatch(
        r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", duration
    ).groups("0")  # type: ignore[union-attr]
    return int(days) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + int(rest)


def args(job: Resource) -> list[str]:
    (container,) = job.properties["template"]["containers"]
    return container["args"]


def roles(deployment: Deployment) -> set[tuple[str, str]]:
    """Who has which role, as principal and role id."""
    return {
        (str(r.properties["principalId"]), r.properties["roleDefinitionId"].rpartition("/")[2])
        for r in deployment.of(ROLE)
    }


# -- every path -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "private"), list(product(["functions", "jobs", "both"], [False, True])))
def test_each_path_makes_what_it_needs_and_no_more(infra: Infrastructure, path: str, private: bool) -> None:
    """A hosting path has its own host and not the other's, with and without a virtual network."""
    made = infra.main(path, useVirtualNetwork=private)
    assert len(made.of("Microsoft.Web/sites")) == (path != "jobs")
    assert len(made.of("Microsoft.App/managedEnvironments")) == (path != "functions")
    assert len(made.of("Microsoft.ContainerRegistry/registries")) == (path != "functions")
    assert len(made.of("Microsoft.Storage/storageAccounts")) == 1
    assert len(made.of("Microsoft.ServiceBus/namespaces")) == bool(infra.manifest["handlers"])
    assert len(made.of("Microsoft.Network/virtualNetworks")) == private
    assert (made.outputs["DEPLOY_FUNCTIONS"], made.outputs["DEPLOY_JOBS"]) == (
        path != "jobs",
        path != "functions",
    )


def test_a_virtual_network_has_an_endpoint_for_each_service(sample: Infrastructure) -> None:
    """With a virtual network storage and Service Bus are reached by private endpoints only."""
    made = sample.main("both", useVirtualNetwork=True)
    groups = {
        c["properties"]["groupIds"][0]: c["properties"]["privateLinkServiceId"]
        for e in made.of("Microsoft.Network/privateEndpoints")
        for c in e.properties["privateLinkServiceConnections"]
    }
    assert set(groups) == {"blob", "queue", "table", "namespace", "registry"}
    assert len(made.of("Microsoft.Network/privateEndpoints/privateDnsZoneGroups")) == len(groups)
    assert made.one("Microsoft.Storage/storageAccounts").properties["publicNetworkAccess"] == "Disabled"
    bus = made.one("Microsoft.ServiceBus/namespaces")
    assert bus.properties["publicNetworkAccess"] == "Disabled"
    assert bus.body["sku"]["name"] == "Premium", "only that tier has private endpoints"


def test_the_storage_is_what_the_code_uses(infra: Infrastructure) -> None:
    """The containers, tables and the queue that the code names are made, in its namespace."""
    made = infra.main("jobs", namespace="shop-production")
    settings = Settings("shop-production", storage=None)  # type: ignore[arg-type]

    def names(kind: str) -> set[str]:
        return {r.name.rpartition("/")[2] for r in made.of(f"Microsoft.Storage/storageAccounts/{kind}")}

    assert names("blobServices/containers") == {settings.lease_container, settings.data_container}
    assert names("tableServices/tables") == {settings.runs_table, settings.claims_table}
    # The second is where the Functions host puts what it cannot read; made here, it needs no right to make any.
    assert names("queueServices/queues") == {settings.request_queue, f"{settings.request_queue}-poison"}


def test_the_namespace_comes_from_the_environments_name(infra: Infrastructure) -> None:
    """Without a namespace of its own an environment gets one that the code accepts."""
    made = infra.main("functions")
    assert made.outputs["RUNONCE_NAMESPACE"] == "runonce-shop-production"
    Settings(made.outputs["RUNONCE_NAMESPACE"], storage=None)  # type: ignore[arg-type]


# -- jobs and handlers ------------------------------------------------------------------------------------------


def test_every_scheduled_job_has_its_execution(infra: Infrastructure) -> None:
    """Each scheduled job has a Container Apps job with its cron, time-out and command, or a refusal instead."""
    made = {args(j)[1]: j for j in infra.jobs().of(JOB) if args(j)[0] == "run"}
    takes = [j for j in infra.manifest["jobs"] if j["container_apps_cron"]]
    assert set(made) == {j["name"] for j in takes}
    assert all(j["container_apps_refusal"] for j in infra.manifest["jobs"] if j not in takes)
    for job in takes:
        configuration = made[job["name"]].properties["configuration"]
        assert args(made[job["name"]]) == ["run", job["name"], "--scheduled"]
        assert configuration["triggerType"] == "Schedule"
        assert configuration["scheduleTriggerConfig"]["cronExpression"] == job["container_apps_cron"]
        assert configuration["replicaTimeout"] == job["replica_timeout"]
        assert configuration["replicaRetryLimit"] == job["replica_retry_limit"]


def test_recovery_has_its_execution(infra: Infrastructure) -> None:
    """There is one recovery job, every minute, which the platform does not start again: the next one comes anyway."""
    (recovery,) = [j for j in infra.jobs().of(JOB) if args(j)[0] == "recover"]
    configuration = recovery.properties["configuration"]
    assert args(recovery) == ["recover", "--work"]
    assert configuration["scheduleTriggerConfig"]["cronExpression"] == "* * * * *"
    assert configuration["replicaRetryLimit"] == 0


def test_every_handler_has_its_queue_trigger_scale_rule_and_role(infra: Infrastructure) -> None:
    """Each handler has what it reads, an Event job with a scale rule for each, and identities that may do it."""
    main, jobs = infra.main("both"), infra.jobs()
    entities = {
        r.name.partition("/")[2]: r
        for r in (*main.of(QUEUE), *main.of(SUBSCRIPTION))
        if r.properties.get("forwardTo") is None  # else its queue is read
    }
    events = {args(j)[1]: j for j in jobs.of(JOB) if args(j)[0] == "work"}
    assert set(events) == {h["name"] for h in infra.manifest["handlers"]}
    assert sorted(entities) == sorted(e for h in infra.manifest["handlers"] for e in entities_read_by(h))
    for handler in infra.manifest["handlers"]:
        read = entities_read_by(handler)
        for entity in read:
            assert entities[entity].properties["maxDeliveryCount"] == handler["max_delivery_count"]
            assert entities[entity].properties["deadLetteringOnMessageExpiration"] is True
        event = events[handler["name"]]
        assert event.properties["configuration"]["triggerType"] == "Event"
        rules = event.properties["configuration"]["eventTriggerConfig"]["scale"]["rules"]
        assert len({rule["name"] for rule in rules}) == len(rules)
        scaled = []
        for rule in rules:
            assert rule["type"] == "azure-servicebus"
            assert "auth" not in rule, "the scaler signs in with an identity, not with a secret"
            metadata = rule["metadata"]
            assert metadata["namespace"] == main.outputs["AZURE_SERVICEBUS_NAMESPACE"]
            assert metadata["messageCount"] == str(handler["concurrency"])
            scaled.append(
                metadata.get("queueName") or f"{metadata['topicName']}/{metadata['subscriptionName']}"
            )
        assert sorted(scaled) == sorted(read)
        assert str(handler["max_messages"]) in args(event)
    if infra.manifest["handlers"]:
        granted = roles(main)
        for role in ("4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0", "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39"):
            assert any("id-jobs-" in p and r == role for p, r in granted)
        assert any("id-func-" in p and r == "090c5cfd-751d-490a-894a-3ce6f1109419" for p, r in granted)


def test_the_namespace_has_what_the_emulator_has(sample: Infrastructure) -> None:
    """Queues, topics, subscriptions and what they forward to are one for one those of the emulator's configuration."""
    (emulated,) = emulator_config(sample.manifest)["UserConfig"]["Namespaces"]
    made = sample.main("both")

    def same(name: str, properties: dict[str, Any]) -> tuple[Any, ...]:
        given = {key[0].lower() + key[1:]: value for key, value in properties.items()}
        keys = ("lockDuration", "maxDeliveryCount", "requiresDuplicateDetection", "forwardTo")
        return (name, *(given.get(key) for key in keys))

    assert {same(q["Name"], q["Properties"]) for q in emulated["Queues"]} == {
        same(q.name.partition("/")[2], q.properties) for q in made.of(QUEUE)
    }
    assert {
        same(f"{topic['Name']}/{s['Name']}", s["Properties"])
        for topic in emulated["Topics"]
        for s in topic["Subscriptions"]
    } == {same(s.name.partition("/")[2], s.properties) for s in made.of(SUBSCRIPTION)}


def test_queues_detect_duplicates(sample: Infrastructure) -> None:
    """Every queue and topic detects duplicates, which cannot be added later."""
    made = sample.main("functions")
    for entity in (*made.of(QUEUE), *made.of("Microsoft.ServiceBus/namespaces/topics")):
        assert entity.properties["requiresDuplicateDetection"] is True
        assert seconds(entity.properties["duplicateDetectionHistoryTimeWindow"]) >= 60
    assert made.one("Microsoft.ServiceBus/namespaces").body["sku"]["name"] == "Standard"


def test_locks_end_within_what_hosts_renew(sample: Infrastructure) -> None:
    """A lock is shorter than the platform allows and than Functions renews it, and longer than half a renewal."""
    host = json.loads((ROOT / "host.json").read_text())
    bus = host["extensions"].get("serviceBus", {})
    renewed = bus.get("maxAutoLockRenewalDuration", "00:05:00")
    hours, minutes, rest = map(int, renewed.split(":"))
    defaults = Settings("default", storage=None)  # type: ignore[arg-type]
    made = sample.main("functions")
    for entity in (*made.of(QUEUE), *made.of(SUBSCRIPTION)):
        lock = seconds(entity.properties["lockDuration"])
        assert lock < hours * 3600 + minutes * 60 + rest
        assert lock <= LONGEST_LOCK
        # Beyond it a claim without a sign of life is free, so the next delivery can take it over.
        assert lock >= defaults.claim_lease * (1 - MARGIN)
        assert lock >= 2 * defaults.lease.renewal


def test_functions_keeps_the_locks_of_the_shipped_handlers() -> None:
    """A shipped handler's time limit is within what the Functions host renews a lock for, and lets it run at all."""
    host = json.loads((ROOT / "host.json").read_text())

    def limit(text: str) -> int:
        hours, minutes, rest = map(int, text.split(":"))
        return hours * 3600 + minutes * 60 + rest

    renewed = limit(host["extensions"]["serviceBus"]["maxAutoLockRenewalDuration"])
    for handler in Infrastructure(INFRA).manifest["handlers"]:
        assert 0 < handler["max_runtime"] <= min(renewed, limit(host["functionTimeout"]))


# -- secure by default ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_no_key_and_no_secret_in_the_templates(file: Any) -> None:
    """No template reads a key, takes a secret or holds a connection string."""
    text = file.read_text(encoding="utf-8")
    for word in (
        "listKeys",
        "listAccountSas",
        "listSecrets",
        "@secure",
        "SharedAccessKey",
        "AccountKey=",
        "getSecret",
    ):
        assert word not in text
    assert "/* " not in text
    assert not re.search(r"\.(primaryKey|primaryConnectionString|instrumentationKey)\b", text, re.IGNORECASE)
    for literal in strings(file):
        assert not re.search(r"[A-Za-z0-9+/]{40,}={0,2}$", literal)


def test_nothing_accepts_a_key(infra: Infrastructure) -> None:
    """Storage, Service Bus, the registry and telemetry take identities only."""
    made = infra.main("both")
    storage = made.one("Microsoft.Storage/storageAccounts").properties
    assert storage["allowSharedKeyAccess"] is False
    assert storage["defaultToOAuthAuthentication"] is True
    assert storage["allowBlobPublicAccess"] is False
    assert storage["minimumTlsVersion"] == "TLS1_2"
    registry = made.one("Microsoft.ContainerRegistry/registries").properties
    assert registry["adminUserEnabled"] is False
    assert registry["policies"]["azureADAuthenticationAsArmPolicy"]["status"] == "enabled"
    assert made.one("Microsoft.Insights/components").properties["DisableLocalAuth"] is True
    assert (
        made.one("Microsoft.OperationalInsights/workspaces").properties["features"]["disableLocalAuth"]
        is True
    )
    for bus in made.of("Microsoft.ServiceBus/namespaces"):
        assert bus.properties["disableLocalAuth"] is True
        assert bus.properties["minimumTlsVersion"] == "1.2"
    policies = made.of("Microsoft.Web/sites/basicPublishingCredentialsPolicies")
    assert [p.properties["allow"] for p in policies] == [False, False]


def test_the_code_of_a_job_never_holds_the_platforms_identity(sample: Infrastructure) -> None:
    """The identity that may manage Service Bus and pull images is out of reach of every container."""
    for job in sample.jobs().of(JOB):
        settings = job.properties["configuration"]["identitySettings"]
        lifecycle = {s["identity"]: s["lifecycle"] for s in settings}
        (platform,) = [i for i in lifecycle if "platform" in i]
        (own,) = [i for i in lifecycle if "jobs" in i]
        assert (lifecycle[platform], lifecycle[own]) == ("None", "Main")
        assert set(job.body["identity"]["userAssignedIdentities"]) == {platform, own}
        assert [r["identity"] for r in job.properties["configuration"]["registries"]] == [platform]
        trigger = job.properties["configuration"].get("eventTriggerConfig")
        if trigger is not None:
            assert {r["identity"] for r in trigger["scale"]["rules"]} == {platform}


# -- settings ---------------------------------------------------------------------------------------------------


def test_flex_is_given_nothing_it_refuses(infra: Infrastructure) -> None:
    """The Function app runs Python 3.13 on Flex Consumption, without settings that plan does not take."""
    made = infra.main("functions")
    app = made.one("Microsoft.Web/sites")
    assert app.body["kind"] == "functionapp,linux"
    assert app.body["tags"]["azd-service-name"] == "functions"
    assert app.properties["functionAppConfig"]["runtime"] == {"name": "python", "version": "3.13"}
    settings = settings_of(made)
    refused = {
        "FUNCTIONS_WORKER_RUNTIME", "FUNCTIONS_EXTENSION_VERSION", "WEBSITE_RUN_FROM_PACKAGE", "WEBSITE_TIME_ZONE",
        "SCM_DO_BUILD_DURING_DEPLOYMENT", "ENABLE_ORYX_BUILD", "TZ", "AzureWebJobsStorage",
    }  # fmt: skip
    assert not refused & set(settings)
    assert all(isinstance(value, str | Later) for value in settings.values())


def test_a_container_is_told_to_stop_well_before_it_is_killed(infra: Infrastructure) -> None:
    """The grace time of a Container Apps job fits into what the platform leaves, with time to record and release."""
    for job in infra.jobs().of(JOB):
        assert float(environment_of(job)["RUNONCE_SHUTDOWN_TIMEOUT"]) <= GRACE <= KILLED_AFTER - 10


def test_both_hosts_work_on_the_same_rows(sample: Infrastructure) -> None:
    """With both hosts live they agree on namespace, storage, broker and when a fire time counts as missed."""
    main = sample.main("both")
    functions = settings_of(main)
    for job in sample.jobs().of(JOB):
        container = environment_of(job)
        for name in (
            "RUNONCE_NAMESPACE",
            "RUNONCE_TRANSPORT",
            "RUNONCE_MISFIRE_GRACE",
            "RUNONCE_LEASE_DURATION",
        ):
            assert container[name] == functions[name]
        account = main.outputs["AZURE_STORAGE_ACCOUNT_NAME"]
        assert account in container["RUNONCE_STORAGE__tableServiceUri"]
        assert account in str(functions["AzureWebJobsStorage__tableServiceUri"])
        assert (
            container["RUNONCE_SERVICEBUS__fullyQualifiedNamespace"]
            == functions["ServiceBusConnection__fullyQualifiedNamespace"]
        )


# -- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["main", "jobs"])
def test_the_parameter_files_name_what_the_templates_take(file: str) -> None:
    """Every parameter azd passes exists, and those that must be given are."""
    from tests.support.bicep import parameters_of  # noqa: PLC0415 - only here

    wanted = parameters_of(INFRA / f"{file}.bicep")
    given = json.loads((INFRA / f"{file}.parameters.json").read_text())["parameters"]
    assert set(given) <= set(wanted)
    assert {name for name, needed in wanted.items() if needed} <= set(given)


def test_both_hosts_are_given_the_same_settings_of_the_jobs(sample: Infrastructure) -> None:
    """The jobs' own settings are written in one place, and reach both hosts whatever characters they hold."""
    own = {"EXCHANGE_RATES_URL": 'https://example.com/?a="1"&b=\\é ', "EMPTY": ""}
    functions = settings_of(sample.main("both", appSettings=own))
    for container in map(environment_of, sample.jobs(app_settings=own).of(JOB)):
        assert {name: container[name] for name in own} == own
    assert {name: functions[name] for name in own} == own


def test_the_deploy_step_is_given_text_alone() -> None:
    """A parameter of jobs.bicep is text, or has a default: what azd passes there comes from environment variables."""
    for node in parse_bicep(INFRA / "jobs.bicep").named_children:
        if node.type == "parameter_declaration":
            (kind,) = [text_of(c) for c in node.named_children if c.type == "type"]
            assert kind == "string", text_of(node)


def test_the_deploy_step_needs_nothing_that_provisioning_does_not_give() -> None:
    """Every variable of jobs.parameters.json is an output of main.bicep, or azd's own."""
    outputs = {
        text_of(next(c for c in node.named_children if c.type == "identifier"))
        for node in walk(parse_bicep(INFRA / "main.bicep"))
        if node.type == "output_declaration"
    }
    used = set(re.findall(r"\$\{([A-Z_]+)\}", (INFRA / "jobs.parameters.json").read_text()))
    assert used - outputs == {"AZURE_ENV_NAME", "SERVICE_JOBS_IMAGE_NAME"}
