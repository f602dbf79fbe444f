"""Microsoft's JavaScript client against the broker: what it does is in javascript/scenarios.js."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from azurite import launcher as npm
from servicebus.launcher import Queue, Subscription, Topic
from tests.support import javascript
from tests.support.service_bus import broker_fixture

if TYPE_CHECKING:
    from servicebus.launcher import Broker

SCENARIOS = javascript.HERE / "scenarios.js"

broker = broker_fixture(
    *(
        Queue(name, lock=30)
        for name in ("settle", "replies", "without-id", "drain", "properties", "schedule", "dead")
    ),
    Queue("abandon", lock=30, max_delivery=3),
    Topic("orders", (Subscription("billing", forward="orders.billing", filter="total > 5"), "audit")),
    Queue("orders.billing"),
)


class Scenario(Protocol):
    """Plays a scenario on an entity; returns what the client saw."""

    def __call__(self, name: str, entity: str) -> Any: ...


@pytest.fixture(scope="module")
def play(broker: Broker) -> Scenario:
    """The client, on the module's broker."""

    def run(name: str, entity: str) -> Any:
        return json.loads(javascript.run(SCENARIOS, name, broker.connection_string, entity))

    return run


def test_it_sends_peeks_receives_and_settles(play: Scenario, broker: Broker) -> None:
    """A batch is peeked and received; completing, abandoning and renewing do what they say."""
    seen = play("settle", "settle")
    assert seen == {"peeked": ["completed", "abandoned", "renewed"], "again": "abandoned", "extended": True}
    assert sum(broker.counts("settle").values()) == 0


def test_its_abandon_counts_as_a_delivery(play: Scenario, broker: Broker) -> None:
    """A handler that always throws is called max_delivery times, and the dead letter says where and why it died."""
    seen = play("abandon", "abandon")
    assert seen == {
        "counts": [0, 1, 2],
        "reason": "MaxDeliveryCountExceeded",
        "description": "Message could not be consumed after 3 delivery attempts.",
        "source": "abandon",
        "number": "1",
    }
    assert sum(broker.counts("abandon").values()) == 0


def test_each_receiver_gets_the_answers_to_its_own_requests(play: Scenario) -> None:
    """Requests side by side are answered to who asked, also when a neighbour's link or connection has gone."""
    assert play("replies", "replies") == {"together": [1, 2, 3], "alone": 3}


def test_a_message_without_an_id_gets_one(play: Scenario) -> None:
    """The client can settle what was sent without an id, since the broker names it; the rest stays as it was."""
    seen = play("withoutId", "without-id")
    first, second = seen["ids"]
    assert len(first) == len(second) == 32
    assert first != second
    assert (seen["subject"], seen["left"]) == ("s", 0)


def test_closing_a_receiver_does_not_wait(play: Scenario) -> None:
    """A receiver that closes or asks for more than there is gets its credit back at once; no message is lost."""
    seen = play("drain", "drain")
    assert (seen["all"], seen["none"]) == (40, 0)
    assert seen["counts"] == [0]
    assert seen["seconds"] < 20


def test_properties_given_when_settling_are_kept(play: Scenario) -> None:
    """Abandoning, deferring and dead-lettering merge properties into the message, and no reason is made up."""
    abandoned = {"kept": True, "tries": 1, "why": "busy"}
    deferred = abandoned | {"deferred": 1.5}
    assert play("properties", "properties") == {
        "abandoned": abandoned, "deferred": deferred, "dead": deferred | {"dead": "yes"}, "reason": None,
    }  # fmt: skip


def test_a_reason_and_properties_go_together(play: Scenario) -> None:
    """A dead letter has the reason and description it was given, and the properties beside them."""
    assert play("deadLetter", "dead") == ["r", "d", 1]


def test_a_scheduled_message_joins_the_end_of_the_queue(play: Scenario) -> None:
    """When due it comes after what was sent meanwhile, under a number of its own."""
    assert play("schedule", "schedule") == {
        "bodies": ["first", "second", "scheduled"], "ascending": True, "renumbered": True,
    }  # fmt: skip


def test_sessions_are_refused_at_once(play: Scenario) -> None:
    """Asking for the next session is answered in the broker's words; for a named one, the client has its own."""
    seen = play("sessions", "settle")
    assert "This local broker has no sessions." in seen["next"][1]
    assert seen["named"][0] == "SessionCannotBeLocked"


def test_it_receives_what_is_filtered_and_forwarded(play: Scenario) -> None:
    """The queue behind a filtered subscription gets what passes, the other subscription everything."""
    assert play("transferred", "orders") == {"copy": {"n": 1}, "left": 0, "both": [{"n": 1}, {"n": 2}]}


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_missing_node_skips_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    """Where Node cannot be had the tests are skipped with the reason; in CI they fail with it."""

    def missing() -> None:
        raise npm.CommandError("no Node here")

    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(npm, "find_or_install_node", missing)
    with pytest.raises(outcome, match="the JavaScript clients cannot be had: no Node here"):
        javascript.node()
