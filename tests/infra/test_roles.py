"""Who may do what: every role with its holder and the entity it is on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.infrastructure import FILES, ROOT, Infrastructure, entities_read_by, with_jobs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bicep import Deployment

ROLES = {
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Blob Owner",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Blob Contributor",
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Blob Reader",
    "974c5e8b-45b9-4653-ba55-5f855dd0fb88": "Queue Contributor",
    "19e7f393-937e-4f77-808e-94535e297925": "Queue Reader",
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": "Table Contributor",
    "76199698-9eea-4c19-bc75-cec21354c6b6": "Table Reader",
    "090c5cfd-751d-490a-894a-3ce6f1109419": "Bus Owner",
    "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0": "Bus Receiver",
    "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39": "Bus Sender",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Metrics Publisher",
}
TOPIC = """
from runonce import Message, handler

@handler(topic="orders", subscription="billing", key="id")
def bill(message: Message) -> None: ...
"""


def granted(made: Deployment) -> set[tuple[str, str, str]]:
    """Holder (functions, jobs, platform, operator), role, and what it is on."""
    found = set()
    for one in made.of("Microsoft.Authorization/roleAssignments"):
        principal = str(one.properties["principalId"])
        identity = re.search(r"/id-(func|jobs|platform)-", principal)
        holder = {"func": "functions"}.get(identity[1], identity[1]) if identity else principal
        role = ROLES[one.properties["roleDefinitionId"].rpartition("/")[2]]
        found.add((holder, role, one.body["scope"]))
    return found


def of(made: Deployment, holder: str) -> set[tuple[str, str]]:
    return {(role, scope) for who, role, scope in granted(made) if who == holder}


# -- least -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["functions", "jobs", "both"])
def test_no_job_and_no_operator_can_write_the_package(infra: Infrastructure, path: str) -> None:
    """What a Container Apps job or an operator may write is the toolkit's alone, never the app's package."""
    made = infra.main(path, operatorAccess="write")
    for holder, role, scope in granted(made):
        if holder in ("jobs", "operator"):
            assert "app-package" not in scope
            assert not re.fullmatch(r"/Microsoft.Storage/storageAccounts/[^/]+", scope), (holder, role)


def test_each_role_is_on_an_entity(infra: Infrastructure) -> None:
    """Queues, containers and tables are granted one by one; only the Functions host has its own account as a whole."""
    made = infra.main("both", operatorAccess="write")
    wide = {
        (holder, role)
        for holder, role, scope in granted(made)
        if re.fullmatch(r"/Microsoft\.(Storage/storageAccounts|ServiceBus/namespaces)/[^/]+", scope)
    }
    assert wide == {("functions", "Blob Owner"), ("functions", "Table Contributor")}


def test_every_entity_of_the_toolkit_is_open_to_its_jobs(infra: Infrastructure) -> None:
    """The code of Container Apps jobs may write each container and table and the queue of requests of the toolkit."""
    made = infra.main("jobs")
    own = of(made, "jobs")
    for kind, role in (
        ("blobServices/containers", "Blob Contributor"),
        ("tableServices/tables", "Table Contributor"),
        ("queueServices/queues", "Queue Contributor"),
    ):
        for entity in made.of(f"Microsoft.Storage/storageAccounts/{kind}"):
            assert (role, entity.id) in own


def test_the_platform_manages_queues_and_no_code_holds_its_identity(sample: Infrastructure) -> None:
    """A scaler manages what it scales on: the platform's identity may, and the Functions app on its own path."""
    made = sample.main("both", operatorAccess="write")
    owners = {holder for holder, role, _ in granted(made) if role == "Bus Owner"}
    assert owners == {"functions", "platform"}
    assert {role for role, _ in of(made, "platform")} == {"Bus Owner", "AcrPull"}
    assert {holder for holder, role, _ in granted(made) if role == "AcrPull"} == {"platform"}


@pytest.mark.parametrize(("path", "holder"), [("functions", "functions"), ("jobs", "platform")])
def test_the_scaler_can_read_the_length_of_whatever_a_handler_reads(
    sample: Infrastructure, path: str, holder: str
) -> None:
    """The identity that scales may manage each queue and subscription that is read, and nothing else of the bus."""
    made = sample.main(path)
    bus = made.one("Microsoft.ServiceBus/namespaces").name
    owned = {scope.partition(f"/{bus}/")[2] for role, scope in of(made, holder) if role == "Bus Owner"}
    assert owned == {
        entity for handler in sample.manifest["handlers"] for entity in entities_read_by(handler)
    }


# -- the operator ----------------------------------------------------------------------------------------------


def test_an_operator_only_reads_unless_told_otherwise(sample: Infrastructure) -> None:
    """By default who deploys may read rows, blobs and requests, and neither write them nor touch a message."""
    assert {role for role, _ in of(sample.main("both"), "operator")} == {
        "Blob Reader",
        "Queue Reader",
        "Table Reader",
    }


def test_an_operator_may_be_let_write(sample: Infrastructure) -> None:
    """With write access the operator can also replay a dead letter: receive and send."""
    assert {role for role, _ in of(sample.main("both", operatorAccess="write"), "operator")} == {
        "Blob Contributor",
        "Queue Contributor",
        "Table Contributor",
        "Bus Receiver",
        "Bus Sender",
    }


@pytest.mark.parametrize(
    "given", [{"operatorAccess": "none"}, {"principalType": "ServicePrincipal", "operatorAccess": "write"}]
)
def test_nobody_gets_access_who_was_not_given_it(sample: Infrastructure, given: dict[str, str]) -> None:
    """A pipeline that deploys gets no access to data, nor does a person where access is switched off."""
    assert not of(sample.main("both", **given), "operator")


# -- topics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forward", [True, False])
def test_a_subscription_forwards_to_the_queue_of_its_handler(tmp_path: Path, forward: bool) -> None:
    """The queue is the one that is forwarded to; without forwarding it is retried through, and both are read."""
    source = TOPIC if forward else TOPIC.replace('key="id"', 'key="id", forward=False')
    infra = with_jobs(tmp_path, source)
    made = infra.main("both")
    subscription = made.one("Microsoft.ServiceBus/namespaces/topics/subscriptions")
    queue = made.one("Microsoft.ServiceBus/namespaces/queues")
    name = "orders.billing" if forward else "orders.billing.retry"
    assert queue.name.partition("/")[2] == name
    assert subscription.properties["forwardTo"] == (name if forward else None)
    same = (
        "lockDuration",
        "maxDeliveryCount",
        "defaultMessageTimeToLive",
        "deadLetteringOnMessageExpiration",
    )
    assert {k: queue.properties[k] for k in same} == {k: subscription.properties[k] for k in same}
    assert queue.properties["requiresDuplicateDetection"] is True
    (window,) = {h["duplicate_detection_window"] for h in infra.manifest["handlers"]}
    assert queue.properties["duplicateDetectionHistoryTimeWindow"] == window

    read = {queue.id} if forward else {queue.id, subscription.id}
    for holder in ("functions", "platform"):
        assert {s for r, s in of(made, holder) if r == "Bus Owner"} == read
    assert {s for r, s in of(made, "jobs") if r == "Bus Receiver"} == read
    topic = made.one("Microsoft.ServiceBus/namespaces/topics")
    assert {s for r, s in of(made, "jobs") if r == "Bus Sender"} == {topic.id, queue.id}
    assert {h for h, r, s in granted(made) if (r, s) == ("Bus Sender", topic.id)} == {"functions", "jobs"}

    written = infra.main("both", operatorAccess="write")
    assert {s for r, s in of(written, "operator") if r == "Bus Receiver"} == read


def test_a_slash_in_a_name_is_a_tilde_to_azures_resource_manager(tmp_path: Path) -> None:
    """Where a resource's name is meant a slash would be a level more; where an entity is, its own name stands."""
    source = TOPIC.replace('"orders"', '"shop/orders"')
    infra = with_jobs(tmp_path, source)
    made = infra.main("both", operatorAccess="write")
    queue = made.one("Microsoft.ServiceBus/namespaces/queues")
    assert queue.name.partition("/")[2] == "shop~orders.billing"
    assert made.one("Microsoft.ServiceBus/namespaces/topics").name.partition("/")[2] == "shop~orders"
    subscription = made.one("Microsoft.ServiceBus/namespaces/topics/subscriptions")
    assert subscription.name.partition("/")[2] == "shop~orders/billing"
    assert subscription.properties["forwardTo"] == "shop/orders.billing"
    on_bus = {scope for _, _, scope in granted(made) if "ServiceBus" in scope}
    assert on_bus == {queue.id, made.one("Microsoft.ServiceBus/namespaces/topics").id}
    (rule,) = [
        rule
        for job in infra.jobs().of("Microsoft.App/jobs")
        for rule in job.properties["configuration"].get("eventTriggerConfig", {"scale": {"rules": []}})[
            "scale"
        ]["rules"]
    ]
    assert rule["metadata"]["queueName"] == "shop/orders.billing"


# -- written down ----------------------------------------------------------------------------------------------


def test_every_role_is_explained() -> None:
    """Every role id in the templates stands in the table of docs/infrastructure.md, and the table has no other."""
    guid = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
    used = {g for file in FILES for g in guid.findall(file.read_text(encoding="utf-8"))}
    explained = guid.findall((ROOT / "docs" / "infrastructure.md").read_text(encoding="utf-8"))
    assert sorted(used) == sorted(explained)
