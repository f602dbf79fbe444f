from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from runonce import Message, Run, handler, scheduled
from runonce.errors import DefinitionError
from runonce.execution.options import MAX_ABANDONED
from runonce.hosts.discover import Discovered
from runonce.hosts.manifest import (
    LONGEST_RESOURCE,
    NO_LIMIT,
    emulator_config,
    iso,
    make_manifest,
    resource_names,
    to_text,
)

if TYPE_CHECKING:
    from runonce.messages.definition import Handler
    from runonce.runs.definition import ScheduledJob

AT = datetime(2026, 11, 29, 12, tzinfo=UTC)


def job(name: str, schedule: str = "0 0 3 * * *", **options: Any) -> ScheduledJob:
    def body(run: Run) -> None:
        """Does it."""

    return scheduled(schedule, name=name, **options)(body)


def handles(name: str, **options: Any) -> Handler:
    def body(message: Message) -> None:
        """Handles it."""

    return handler(name=name, key="id", **options)(body)


def found(*definitions: ScheduledJob | Handler) -> Discovered:
    made = Discovered()
    for one in definitions:
        if hasattr(one, "schedule"):
            made.jobs[one.name] = one
        else:
            made.handlers[one.name] = one
    return made


def only(made: dict[str, Any], kind: str) -> dict[str, Any]:
    (entry,) = made[kind]
    return entry


def test_a_job_stands_there_in_both_hosts_words() -> None:
    """A scheduled job has its schedule, its timer for Functions and its cron for Container Apps."""
    entry = only(
        make_manifest(found(job("report", time_zone="Europe/Istanbul", retries=3, retry_delay=0.5)), AT),
        "jobs",
    )
    assert entry["schedule"] == "0 0 3 * * *"
    assert entry["time_zone"] == "Europe/Istanbul"
    assert entry["functions_timer"] == "0 0 0 * * *"
    assert entry["container_apps_cron"] == "0 0 * * *"
    assert (entry["retries"], entry["retry_delay"]) == (3, 1)
    assert entry["summary"] == "Does it."


def test_a_refused_schedule_keeps_its_reason() -> None:
    """What five fields cannot say has no cron, but the refusal with the job's name and the remedy."""
    entry = only(make_manifest(found(job("often", "*/10 * * * * *")), AT), "jobs")
    assert entry["container_apps_cron"] == ""
    assert "Job 'often'" in entry["container_apps_refusal"]
    assert "run this job on Functions" in entry["container_apps_refusal"]
    assert entry["functions_timer"] == "*/10 * * * * *"


def test_every_entry_has_every_key() -> None:
    """Bicep takes an item's type from the file, so entries differ in values and never in keys."""
    made = make_manifest(
        found(
            job("a"),
            job("b", "*/10 * * * * *", max_runtime=None),
            handles("c", queue="c"),
            handles("d", topic="t", subscription="s", lock="x:{id}", max_runtime=None),
        ),
        AT,
    )
    for kind in ("jobs", "handlers"):
        assert len({tuple(entry) for entry in made[kind]}) == 1
    assert "null" not in to_text(made)


def test_the_order_does_not_depend_on_the_files() -> None:
    """The same jobs give the same text, whatever order they were found in."""
    jobs = [job("b"), job("a"), handles("z", queue="z"), handles("y", queue="y")]
    assert to_text(make_manifest(found(*jobs), AT)) == to_text(make_manifest(found(*jobs[::-1]), AT))


def test_it_does_not_change_from_day_to_day() -> None:
    """The text is the same all year, so that a check for staleness fails for changes of the code only."""
    jobs = found(
        job("ny", "0 30 2 * * *", time_zone="America/New_York"),
        job("weekly", "0 30 1 * * 0", time_zone="Europe/London"),
    )
    texts = {
        to_text(make_manifest(jobs, datetime(2026, month, 28, 23, tzinfo=UTC))) for month in range(1, 13)
    }
    assert len(texts) == 1


def test_the_platforms_time_out_is_later_than_the_toolkits() -> None:
    """The toolkit ends a run that takes too long, so the platform waits longer; without a limit it waits a day."""
    made = make_manifest(found(job("a", max_runtime=100), job("b", max_runtime=None)), AT)
    short, unlimited = made["jobs"]
    assert short["replica_timeout"] > 100 + 60
    assert (unlimited["max_runtime"], unlimited["replica_timeout"]) == (0, NO_LIMIT)
    assert made["recovery"]["replica_timeout"] == NO_LIMIT


def test_an_execution_of_a_handler_ends_within_its_time_out() -> None:
    """All messages that one execution takes fit into its time-out, however long each takes."""
    for limit in (0.5, 60, 240, 3000, 86_400):
        entry = only(
            make_manifest(found(handles("h", queue="q", max_runtime=limit, concurrency=4)), AT), "handlers"
        )
        rounds = entry["max_messages"] / entry["concurrency"]
        assert rounds >= 1
        assert entry["replica_timeout"] > rounds * limit


def test_a_handlers_figures() -> None:
    """The broker gives a message up later than the toolkit, and the claim is free when the lock has ended."""
    entry = only(make_manifest(found(handles("h", queue="invoices")), AT), "handlers")
    assert (entry["queue"], entry["topic"], entry["subscription"]) == ("invoices", "", "")
    assert entry["max_delivery_count"] > MAX_ABANDONED
    assert entry["lock_duration"] == "PT1M"
    assert entry["default_ttl"] == "P14D"
    assert entry["duplicate_detection_window"] == "PT10M"


def test_a_subscription_names_its_topic() -> None:
    """A handler of a topic has the queue its subscription forwards to, and each topic is listed once."""
    made = make_manifest(
        found(
            handles("a", topic="orders", subscription="billing"),
            handles("b", topic="orders", subscription="post"),
            handles("c", topic="orders", subscription="audit", forward=False),
            handles("d", queue="invoices"),
        ),
        AT,
    )
    assert [(h["queue"], h["topic"], h["subscription"], h["forward"]) for h in made["handlers"]] == [
        ("orders.billing", "orders", "billing", True),
        ("orders.post", "orders", "post", True),
        ("orders.audit.retry", "orders", "audit", False),
        ("invoices", "", "", False),
    ]
    assert made["topics"] == ["orders"]


def test_two_handlers_of_one_queue_are_refused() -> None:
    """Two handlers of the same queue would each get some of the messages, and the error names both and a remedy."""
    both = found(handles("a", queue="invoices"), handles("b", queue="invoices"))
    with pytest.raises(DefinitionError, match=r"'a' and 'b' both read 'invoices'.*a queue of its own"):
        make_manifest(both, AT)
    for other in ({"queue": "Invoices"}, {"topic": "in", "subscription": "voices"}):
        mixed = found(handles("a", queue="invoices"), handles("b", queue="in.voices"), handles("c", **other))
        with pytest.raises(DefinitionError, match="and 'c' both read"):
            make_manifest(mixed, AT)


def test_a_name_like_the_made_one_of_another_has_its_own_resource() -> None:
    """What a name gets for its suffix may be what another is called; then both have names that differ still."""
    taken = resource_names(["a_b", "a-b"])["a_b"]
    names = resource_names(["a_b", "a-b", taken])
    assert len(set(names.values())) == 3
    assert names[taken] == taken
    assert max(map(len, names.values())) <= LONGEST_RESOURCE


def test_resource_names_fit_and_differ() -> None:
    """Names that are too long, or would be the same without their underscores, get a suffix of their own."""
    long = "bill_the_order_of_a_customer_with_a_long_name"
    names = resource_names(["a_b", "a-b", "plain", "trailing_", long, f"{long}_2"])
    assert names["plain"] == "plain"
    assert names["trailing_"] == "trailing"
    assert len(set(names.values())) == len(names)
    for name in names.values():
        assert len(name) <= LONGEST_RESOURCE
        assert name == name.lower()
        assert "--" not in name
        assert name[0].isalpha()
        assert name[-1].isalnum()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(60, "PT1M"), (14 * 86_400, "P14D"), (5400, "PT1H30M"), (0, "PT0S"), (90_061, "P1DT1H1M1S")],
)
def test_durations_are_iso(seconds: int, text: str) -> None:
    """A duration is written as Azure Resource Manager reads it."""
    assert iso(seconds) == text


def test_the_emulator_gets_the_same_queues_and_topics() -> None:
    """The emulator's configuration has each handler's queue, and each topic with its subscriptions."""
    made = make_manifest(
        found(
            handles("a", queue="invoices"),
            handles("b", topic="orders", subscription="billing"),
            handles("c", topic="orders", subscription="post", forward=False),
        ),
        AT,
    )
    (namespace,) = emulator_config(made)["UserConfig"]["Namespaces"]
    queues = [queue["Name"] for queue in namespace["Queues"]]
    assert queues == ["invoices", "orders.billing", "orders.post.retry"]
    assert namespace["Queues"][0]["Properties"]["RequiresDuplicateDetection"] is True
    (topic,) = namespace["Topics"]
    assert [one["Name"] for one in topic["Subscriptions"]] == ["billing", "post"]
    assert [one["Properties"].get("ForwardTo") for one in topic["Subscriptions"]] == ["orders.billing", None]


def test_a_schedule_from_a_setting_is_its_default_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest names the setting and carries the default in both hosts' words, whatever this machine has set."""
    entries = []
    for value in ("", "0 0 4 * * *"):
        monkeypatch.setenv("NIGHTLY_SCHEDULE", value)
        entries.append(
            only(make_manifest(found(job("report", "%NIGHTLY_SCHEDULE%", default="0 0 3 * * *")), AT), "jobs")
        )
    assert entries[0] == entries[1]
    assert (entries[0]["schedule"], entries[0]["schedule_setting"]) == ("0 0 3 * * *", "NIGHTLY_SCHEDULE")
    assert (entries[0]["functions_timer"], entries[0]["container_apps_cron"]) == ("0 0 3 * * *", "0 3 * * *")


def test_a_size_stands_there_and_recovery_has_the_largest() -> None:
    """Either of cpu and memory says both; recovery runs what is tried again, and so has the largest job's."""
    made = make_manifest(
        found(
            job("small"),
            job("large", memory="8Gi"),
            job("middle", cpu=1, memory="2.0Gi"),
            handles("send", queue="send", cpu=0.75),
        ),
        AT,
    )
    sizes = {
        entry["name"]: (entry["cpu"], entry["memory"])
        for kind in ("jobs", "handlers")
        for entry in made[kind]
    }
    assert sizes == {
        "small": ("", ""),
        "large": ("4", "8Gi"),
        "middle": ("1", "2Gi"),
        "send": ("0.75", "1.5Gi"),
    }
    assert (made["recovery"]["cpu"], made["recovery"]["memory"]) == ("4", "8Gi")
    plain = make_manifest(found(job("small")), AT)["recovery"]
    assert (plain["cpu"], plain["memory"]) == ("", "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu": 0},
        {"cpu": 0.3},
        {"cpu": 4.25},
        {"cpu": True},
        {"cpu": "1"},
        {"cpu": float("nan")},
        {"memory": "2G"},
        {"memory": "16Gi"},
        {"memory": 2},
        {"cpu": 1, "memory": "1Gi"},
    ],
)
def test_a_size_that_container_apps_does_not_take_is_refused(wrong: dict[str, Any]) -> None:
    """The error names the job, both values and the sizes there are, for jobs and handlers."""
    for define in (lambda: job("report", **wrong), lambda: handles("send", queue="send", **wrong)):
        with pytest.raises(
            DefinitionError, match=r"Job '\w+': cpu=.*, memory=.* give cpu, a multiple of 0.25 up to 4"
        ):
            define()
