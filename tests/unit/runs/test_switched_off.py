"""What an app on Functions does not start is seen by people who have not its settings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runonce.execution.registry import Registry
from runonce.runs.presence import Presence
from runonce.runs.switched_off import note_switched_off, switched_off
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock

if TYPE_CHECKING:
    from runonce.stores.protocols import TableStore

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SHOP, SLOT = "shop.azurewebsites.net", "shop-staging.azurewebsites.net"


def registry(table: TableStore, namespace: str = "test") -> Registry:
    return Registry(table, namespace, ManualClock(NOW), "host")


def test_what_each_app_does_not_start_is_read_by_others() -> None:
    """Name, setting, app and time of each, whichever app it is of; hosts that check in beside it are none of it."""
    table = memory_stores(ManualClock(NOW)).runs
    one = registry(table)
    Presence(one, [], NOW).check_in()
    assert switched_off(one) == []
    note_switched_off(
        one, SHOP, {"take": "AzureWebJobs.take.Disabled", "nightly": "AzureWebJobs_nightly_Disabled"}
    )
    note_switched_off(one, SLOT, {"nightly": "--functions"})
    note_switched_off(registry(table, "another"), SHOP, {"other": "AzureWebJobs.other.Disabled"})
    found = [(each.app, each.name, each.setting) for each in switched_off(one)]
    assert sorted(found) == [
        (SLOT, "nightly", "--functions"),
        (SHOP, "nightly", "AzureWebJobs_nightly_Disabled"),
        (SHOP, "take", "AzureWebJobs.take.Disabled"),
    ]
    assert {each.noted_at for each in switched_off(one)} == {NOW}


def test_an_app_that_starts_everything_again_is_not_named() -> None:
    """Its row changes with its settings, and goes with the last function that was switched off; twice does no harm."""
    table = memory_stores(ManualClock(NOW)).runs
    one = registry(table)
    note_switched_off(one, SHOP, {"take": "AzureWebJobs.take.Disabled"})
    note_switched_off(one, SHOP, {"nightly": "AzureWebJobs.nightly.Disabled"})
    assert [each.name for each in switched_off(one)] == ["nightly"]
    for _ in range(2):
        note_switched_off(one, SHOP, {})
        assert switched_off(one) == []
