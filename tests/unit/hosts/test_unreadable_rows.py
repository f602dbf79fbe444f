"""Rows and files of hosts that cannot be read: told by name, left as they are, and in nobody's way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from runonce.errors import UnreadableRowError
from runonce.hosts.same_machine import _Machine
from runonce.runs.presence import hosts, partition
from runonce.runs.switched_off import switched_off
from runonce.stores.protocols import Insert
from runonce.testing import Workbench
from tests.unit.hosts.test_functions_in_hand import MISSED_BY_NOW, Bench

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.stores.protocols import Value


@pytest.mark.parametrize("change", [{"jobs": "{"}, {"jobs": "[[]]"}, {"every": "often"}, {"started": "soon"}])
def test_a_hosts_row_that_cannot_be_read_is_told(change: dict[str, Value]) -> None:
    """What a newer version or a person has written into a host's row is an error that names the row."""
    registry = Workbench().dispatcher.registry
    registry.table.commit(partition(registry.namespace), [Insert("host:h", {"name": "h", **change})])
    with pytest.raises(UnreadableRowError, match="Row host:h cannot be read"):
        hosts(registry)


@pytest.mark.parametrize("values", [{}, {"functions": "[1]"}, {"functions": '{"nightly": 7}'}])
def test_an_apps_row_that_cannot_be_read_is_told(values: dict[str, Value]) -> None:
    """So is that of what an app has switched off."""
    registry = Workbench().dispatcher.registry
    registry.table.commit(partition(registry.namespace), [Insert("off:shop", {"app": "shop", **values})])
    with pytest.raises(UnreadableRowError, match="Row off:shop cannot be read"):
        switched_off(registry)


@pytest.mark.parametrize("values", [{}, {"claim_lease": "long"}, {"messages": "orders a"}])
def test_messages_in_hand_that_cannot_be_read_keep_no_others_back(
    values: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A row of a worker that is gone which cannot be read is kept and told; the next worker's messages are shown."""
    bench = Bench()
    whole = {"claim_lease": 60, "messages": "orders b r2"}
    odd = {**whole, **values} if values else {}
    at = partition(bench.settings.namespace)
    bench.stores.runs.commit(at, [Insert("hand:a", odd), Insert("hand:b", whole)])
    bench.clock.advance(MISSED_BY_NOW.total_seconds())
    assert bench.one.look()
    assert [shown[1] for shown in bench.sender.shown] == [("b", "r2")]
    assert bench.stores.runs.get(at, "hand:a") is not None
    assert bench.stores.runs.get(at, "hand:b") is None
    assert "Row hand:a cannot be read" in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="Windows has no flock")
@pytest.mark.parametrize(
    "content", ["", '{"job": "nightly"', '{"job": "nightly", "lock": "x", "fire_time": "soon"}']
)
def test_a_dead_hosts_file_that_was_cut_short_is_removed(content: str, tmp_path: Path) -> None:
    """As after a full disk: it is told and removed, and the file of another dead host is taken up as ever."""
    bench = Workbench()
    (tmp_path / "a.run").write_text(content)
    whole = '{"job": "nightly", "lock": "test/nightly", "fire_time": "2026-01-01T03:00:00Z"}'
    (tmp_path / "b.run").write_text(whole)
    _Machine(bench.dispatcher, tmp_path).take_up()
    assert list(tmp_path.iterdir()) == []
    asked = bench.stores.requests.receive(visibility=1)
    assert asked is not None
    assert "2026-01-01T03:00:00Z" in asked.body
