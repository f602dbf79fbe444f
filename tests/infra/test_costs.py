"""What docs/deploy.md says of costs: storage calls by the day, and money by the month."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from itertools import product
from typing import TYPE_CHECKING

import pytest
from support.command_line import invoke

from runonce.cli.context import Context
from runonce.hosts.runtime import Runtime
from tests.support.infrastructure import INFRA, ROOT, Infrastructure

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from tests.conftest import Calls

MINUTES = 24 * 60
JOB = """
from runonce import Run, scheduled

@scheduled("0 0 3 * * *")
def nightly(run: Run) -> None:
    "Works."
"""


@pytest.mark.parametrize("deployment", ["", "20261130T120000Z"])
def test_an_idle_recovery_execution_costs_what_is_written(
    settings: Settings, azure: Stores, calls: Calls, tmp_path: Path, deployment: str
) -> None:
    """With nothing unfinished a recovery execution makes four calls, and the page counts them so."""
    (tmp_path / "job.py").write_text(JOB)
    environ = {
        "RUNONCE_STORAGE": settings.storage.connection_string or "",
        "RUNONCE_NAMESPACE": settings.namespace,
        "RUNONCE_JOBS": str(tmp_path),
        "RUNONCE_DEPLOYMENT": deployment,
    }
    for _ in range(2):  # the first makes the rows, the table and the queue
        calls.made.clear()
        assert invoke(Context(Runtime(environ=environ, stores=azure)), "recover", "--work").exit_code == 0
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"recovery, idle, on Container Apps \| ([\d,]+)", text)
    assert len(calls.made) * MINUTES == int(written.replace(",", "")), calls.made
    assert len(calls.made) == sum(load_cost().RECOVERY_CALLS["jobs"]), "what the money is computed from"


def load_cost() -> ModuleType:
    spec = importlib.util.spec_from_file_location("infra_cost", ROOT / "infra" / "cost.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def computed(*arguments: str) -> str:
    command = [sys.executable, str(ROOT / "infra" / "cost.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cells(text: str, title: str) -> list[str]:
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {title} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_the_table_is_what_the_script_computes() -> None:
    """The page has the script's table of the shipped jobs, with the date of its prices."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"<!-- made by infra/cost.py -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert written == computed(), "run `python infra/cost.py` and put its output into docs/deploy.md"
    assert re.search(r"Prices of \d{4}-\d\d-\d\d", written)


def test_prices_are_inputs(tmp_path: Path) -> None:
    """With other prices the amounts follow, and what is used does not change."""
    prices = json.loads((ROOT / "infra" / "prices.json").read_text())
    prices["functions_gb_second"] *= 10
    (tmp_path / "prices.json").write_text(json.dumps(prices))
    before, after = computed(), computed("--prices", str(tmp_path / "prices.json"))
    assert cells(before, "recovery's compute") == cells(after, "recovery's compute")
    was, now = (cells(text, "recovery, without them") for text in (before, after))
    assert float(now[0]) > 3 * float(was[0])
    assert now[1] == was[1]


def test_the_figures_follow_from_the_manifest(tmp_path: Path) -> None:
    """Without handlers there is no Service Bus to pay; with larger hands a million messages take fewer executions."""
    manifest = json.loads((ROOT / "infra" / "jobs.json").read_text())
    for handler in manifest["handlers"]:
        handler["max_messages"] *= 10
    (tmp_path / "larger.json").write_text(json.dumps(manifest))
    manifest["handlers"] = []
    (tmp_path / "none.json").write_text(json.dumps(manifest))
    without = computed("--manifest", str(tmp_path / "none.json"))
    assert "Service Bus" not in without
    title = "**a million messages**: compute"
    shipped = cells(computed(), title)
    larger = cells(computed("--manifest", str(tmp_path / "larger.json")), title)
    assert larger[0] == shipped[0]
    assert _first(larger[1]) < _first(shipped[1])


def _first(cell: str) -> float:
    return float(cell.split(maxsplit=1)[0].replace(",", ""))


def test_an_idle_month_by_hand() -> None:
    """Recovery's month as one would work it out on paper, from the figures of the parameter files."""
    text = computed()
    minutes = 30 * 24 * 60
    assert cells(text, "**idle**: recovery's own executions")[0] == f"{minutes:,}"
    assert cells(text, "recovery's compute") == [
        f"{minutes * 0.5:,.0f} GB-s",  # a second each on 512 MB
        f"{minutes * 5 * 0.25:,.0f} vCPU-s, {minutes * 5 * 0.5:,.0f} GiB-s",
    ]
    assert cells(text, "recovery, without them")[0] == f"{_by_hand(minutes):.2f}"


@pytest.mark.parametrize(("path", "private"), list(product(["functions", "jobs"], [False, True])))
def test_what_is_fixed_is_what_is_made(infra: Infrastructure, path: str, private: bool) -> None:
    """The rules, tiers and endpoints that the script counts are those that the templates make."""
    cost = load_cost()
    prices = json.loads((INFRA / "prices.json").read_text())
    made = infra.main(path, useVirtualNetwork=private)
    fixed = cost.fixed(path, prices, infra.manifest, private=private)
    bus = "Microsoft.ServiceBus/namespaces"
    watched = len(made.of(f"{bus}/queues")) + len(made.of(f"{bus}/topics"))
    alerts = sum(
        prices[{"PT5M": "log_alert_5_minutes_month", "PT15M": "log_alert_15_minutes_month"}[r]]
        for r in (
            rule.properties["evaluationFrequency"]
            for rule in made.of("Microsoft.Insights/scheduledQueryRules")
        )
    )
    metrics = len(made.of("Microsoft.Insights/metricAlerts")) * watched
    metrics += len(infra.jobs().of("Microsoft.Insights/metricAlerts")) if path == "jobs" else 0
    assert fixed["alerts"] == pytest.approx(alerts + metrics * prices["metric_alert_month"])
    endpoints = len(made.of("Microsoft.Network/privateEndpoints"))
    each = prices["private_endpoint_hour"] * cost.HOURS + prices["dns_zone_month"]
    assert fixed.get("private endpoints and zones", 0) == pytest.approx(endpoints * each)
    tier = made.one("Microsoft.ServiceBus/namespaces").body["sku"]["name"]
    assert f"Service Bus {tier}" in fixed
    registries = [r.body["sku"]["name"] for r in made.of("Microsoft.ContainerRegistry/registries")]
    assert [f"registry {sku}" in fixed for sku in registries] == [True] * len(registries)


def _by_hand(minutes: int) -> float:
    compute = minutes * 0.5 * 0.000026 + minutes * 0.4 / 1e6
    calls = minutes * 0.036 / 1e6 + 8 * minutes * 0.44 / 1e6 + 30 * minutes * 0.4 / 1e6
    return compute + calls
