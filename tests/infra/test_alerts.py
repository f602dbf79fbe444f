"""Which alerts there are, on what, and whom they tell; what their queries find is in test_alert_queries.py."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.support.infrastructure import with_jobs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.infrastructure import Infrastructure

LOG_ALERT = "Microsoft.Insights/scheduledQueryRules"
METRIC_ALERT = "Microsoft.Insights/metricAlerts"
HANDLER = """
from runonce import Message, handler

@handler(queue="invoices", key="id")
def send_invoice(message: Message) -> None: ...
"""


def test_there_is_an_alert_for_everything_that_may_go_wrong(sample: Infrastructure) -> None:
    """Dead letters, waiting messages, failed executions, failed and missed runs and silence each have an alert."""
    main, jobs = sample.main("both"), sample.jobs()
    logs = {r.name for r in main.of(LOG_ALERT)}
    assert logs == {
        "alert-missed-runs",
        "alert-no-sign-of-life",
        "alert-failed-runs",
        "alert-recovery-silent",
    }
    metrics = {r.name: r.properties["criteria"]["allOf"][0]["metricName"] for r in main.of(METRIC_ALERT)}
    assert metrics == {
        "alert-dead-letters": "DeadletteredMessages",
        "alert-backlog": "ActiveMessages",
        "alert-waiting-messages": "ActiveMessages",
    }
    executions = jobs.of(METRIC_ALERT)
    assert {a.properties["scopes"][0] for a in executions} == {j.id for j in jobs.of("Microsoft.App/jobs")}
    group = main.one("Microsoft.Insights/actionGroups")
    for rule in (*main.of(LOG_ALERT), *main.of(METRIC_ALERT), *executions):
        assert group.name in json.dumps(rule.properties["actions"])


def test_a_deployment_of_handlers_alone_is_watched(tmp_path: Path) -> None:
    """Without a scheduled job recovery's silence, dead letters and waiting messages are still noticed."""
    made = with_jobs(tmp_path, HANDLER).main("functions")
    assert [r.name for r in made.of(LOG_ALERT)] == ["alert-recovery-silent"]
    assert len(made.of(METRIC_ALERT)) == 3


def test_a_queue_nobody_reads_is_noticed(sample: Infrastructure) -> None:
    """One message that waits for an hour fires, on each queue alone; a queue that was empty in between does not."""
    (rule,) = [r for r in sample.main("functions").of(METRIC_ALERT) if r.name == "alert-waiting-messages"]
    (criterion,) = rule.properties["criteria"]["allOf"]
    assert (criterion["timeAggregation"], criterion["operator"], criterion["threshold"]) == (
        "Minimum",
        "GreaterThan",
        0,
    )
    assert rule.properties["windowSize"] == "PT1H"
    assert [d["name"] for d in criterion["dimensions"]] == ["EntityName"]


def test_whatever_is_read_is_watched(sample: Infrastructure) -> None:
    """Each alert on messages is about every entity of the namespace, each alone: retry queues and topics too."""
    made = sample.main("both")
    rules = made.of(METRIC_ALERT)
    assert len(rules) == 3
    for rule in rules:
        assert rule.properties["scopes"] == [made.one("Microsoft.ServiceBus/namespaces").id]
        (criterion,) = rule.properties["criteria"]["allOf"]
        assert criterion["dimensions"] == [{"name": "EntityName", "operator": "Include", "values": ["*"]}]


def test_silence_is_noticed_for_every_job(infra: Infrastructure) -> None:
    """The alert on silence knows every scheduled job by name, in the namespace that logs."""
    rules = infra.main("jobs", namespace="shop-production").of(LOG_ALERT)
    (query,) = [
        r.properties["criteria"]["allOf"][0]["query"] for r in rules if r.name == "alert-no-sign-of-life"
    ]
    known = re.findall(r'"([a-z][a-z0-9_-]*)"', query.partition("]")[0])
    assert sorted(known) == sorted(j["name"] for j in infra.manifest["jobs"])
    assert "namespace=shop-production " in query


def test_a_budget_is_made_when_it_is_asked_for(sample: Infrastructure) -> None:
    """A monthly amount makes a budget that tells whom the alerts tell; none by default."""
    assert not sample.main("both").of("Microsoft.Consumption/budgets")
    made = sample.main("both", monthlyBudget=50, budgetStart="2026-12-01")
    budget = made.one("Microsoft.Consumption/budgets").properties
    assert (budget["amount"], budget["timePeriod"]["startDate"]) == (50, "2026-12-01")
    group = made.one("Microsoft.Insights/actionGroups")
    assert all(n["contactGroups"] == [group.id] for n in budget["notifications"].values())
