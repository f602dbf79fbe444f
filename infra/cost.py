"""What a month costs on each path: idle, and for a million runs and messages. Computed from the manifest.

    python infra/cost.py                            the table of docs/deploy.md
    python infra/cost.py --run-seconds 60           for runs of a minute
    python infra/cost.py --prices mine.json         with prices of your own

Prices are inputs, with their date, in infra/prices.json; sizes are the defaults of the parameter files. Free monthly
grants are per subscription, and taken off the idle figures only: a million more does not have them again. Logs,
traffic and what your jobs call are not in it. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MILLION = 1_000_000
DAYS = 30
MINUTES = DAYS * 24 * 60
HOURS = DAYS * 24

POLLS_A_MINUTE = 30  # the Functions host looks at the internal queue every 2 s while an instance is awake
LEASES_A_MINUTE = 8  # and renews the lease of its timer every 7.5 s
RECOVERY_CALLS = {"functions": (2, 0), "jobs": (2, 2)}
"""Calls of an idle recovery tick, its sign of life included: to tables, and to queues."""
RUN_TABLE_CALLS, RUN_BLOB_CALLS, RENEWALS_A_MINUTE = 3, 2, 3
EXECUTION_TABLE_CALLS = {"functions": 0, "jobs": 1}
"""To see which deployment is the newest, before it does anything."""
MESSAGE_TABLE_CALLS = 2
MESSAGE_OPERATIONS = 3
"""Of Service Bus: sent, received, completed. An empty look of a scaler is one more, and not counted."""
START_SECONDS = 5
"""What an execution of a container is billed for beside its work: it starts, imports, and ends."""


@dataclass(frozen=True)
class Use:
    """What is billed by the month, or for so many runs."""

    gb_seconds: float = 0
    executions: float = 0
    vcpu_seconds: float = 0
    gib_seconds: float = 0
    table_calls: float = 0
    blob_calls: float = 0
    queue_calls: float = 0
    operations: float = 0

    def price(self, prices: dict[str, Any], *, grants: bool) -> float:
        """Dollars, the monthly free grants taken off or not."""

        def billed(used: float, free: str) -> float:
            return max(0.0, used - prices[free]) if grants else used

        return (
            billed(self.gb_seconds, "functions_gb_seconds_free") * prices["functions_gb_second"]
            + billed(self.executions, "functions_executions_free")
            * prices["functions_million_executions"]
            / MILLION
            + billed(self.vcpu_seconds, "container_vcpu_seconds_free") * prices["container_vcpu_second"]
            + billed(self.gib_seconds, "container_gib_seconds_free") * prices["container_gib_second"]
            + self.table_calls * prices["table_million_calls"] / MILLION
            + self.blob_calls * prices["blob_million_calls"] / MILLION
            + self.queue_calls * prices["queue_million_calls"] / MILLION
            + billed(self.operations, "service_bus_operations_free")
            * prices["service_bus_million_operations"]
            / MILLION
        )


@dataclass(frozen=True)
class Sizes:
    """What an instance or an execution has."""

    functions_gb: float
    job: tuple[float, float]
    recovery: tuple[float, float]

    @classmethod
    def by_default(cls, recovery: dict[str, Any]) -> Sizes:
        """As the parameter files have it; recovery's is the manifest's where a job asks for one."""
        text = "".join(
            (HERE / f"{name}.parameters.json").read_text(encoding="utf-8") for name in ("main", "jobs")
        )
        value = dict(re.findall(r"\$\{(\w+)=([^}]*)\}", text))

        def pair(name: str) -> tuple[float, float]:
            return float(value[f"{name}_CPU"]), float(value[f"{name}_MEMORY"].removesuffix("Gi"))

        asked = (
            (float(recovery["cpu"]), float(recovery["memory"].removesuffix("Gi")))
            if recovery["cpu"]
            else None
        )
        return cls(int(value["INSTANCE_MEMORY_MB"]) / 1024, pair("JOBS"), asked or pair("RECOVERY"))


def recovery(path: str, sizes: Sizes, prices: dict[str, Any]) -> Use:
    """A month of recovery with nothing to recover."""
    tables, queues = (calls * MINUTES for calls in RECOVERY_CALLS[path])
    if path == "functions":
        return Use(
            gb_seconds=MINUTES * prices["functions_least_seconds"] * sizes.functions_gb,
            executions=MINUTES,
            table_calls=tables,
            blob_calls=LEASES_A_MINUTE * MINUTES,
            queue_calls=queues + POLLS_A_MINUTE * MINUTES,
        )
    cpu, memory = sizes.recovery
    seconds = MINUTES * START_SECONDS
    return Use(
        vcpu_seconds=seconds * cpu, gib_seconds=seconds * memory, table_calls=tables, queue_calls=queues
    )


def a_million_runs(path: str, sizes: Sizes, prices: dict[str, Any], seconds: float) -> Use:
    """A million runs that each take so many seconds, one on an instance at a time."""
    blobs = RUN_BLOB_CALLS + seconds / 60 * RENEWALS_A_MINUTE
    calls = {
        "table_calls": (RUN_TABLE_CALLS + EXECUTION_TABLE_CALLS[path]) * MILLION,
        "blob_calls": blobs * MILLION,
        # The request that waits for its host's death: sent, hidden with each renewal, and deleted.
        "queue_calls": (2 + seconds / 60 * RENEWALS_A_MINUTE) * MILLION if seconds > 1 else 0,
    }
    return _work(path, sizes, prices, seconds, MILLION, **calls)


def a_million_messages(
    path: str, sizes: Sizes, prices: dict[str, Any], seconds: float, handlers: list[dict[str, Any]]
) -> Use:
    """A million messages that each take so many seconds: an execution takes a full hand of its handler's."""
    concurrency = sum(h["concurrency"] for h in handlers) / len(handlers)
    hand = sum(h["max_messages"] for h in handlers) / len(handlers)
    tables = MESSAGE_TABLE_CALLS * MILLION + EXECUTION_TABLE_CALLS[path] * MILLION / hand
    calls = {"table_calls": tables, "operations": MESSAGE_OPERATIONS * MILLION}
    if path == "functions":
        # Billed is the time in which an instance does anything, and it does several messages at once.
        return _work(path, sizes, prices, seconds, MILLION, share=concurrency, **calls)
    return _work(path, sizes, prices, seconds * hand / concurrency, MILLION / hand, **calls)


def _work(
    path: str,
    sizes: Sizes,
    prices: dict[str, Any],
    seconds: float,
    times: float,
    share: float = 1,
    **calls: float,
) -> Use:
    if path == "functions":
        billed = max(seconds, prices["functions_least_seconds"]) * sizes.functions_gb * times / share
        return Use(gb_seconds=billed, executions=times, **calls)
    cpu, memory = sizes.job
    billed = (START_SECONDS + seconds) * times
    return Use(vcpu_seconds=billed * cpu, gib_seconds=billed * memory, **calls)


def fixed(path: str, prices: dict[str, Any], manifest: dict[str, Any], *, private: bool) -> dict[str, float]:
    """What a month costs that nothing uses, by what it is for."""
    handlers, jobs = manifest["handlers"], manifest["jobs"]
    found = {}
    if handlers:
        kind = "premium" if private else "standard"
        found[f"Service Bus {kind.title()}"] = prices[f"service_bus_{kind}_hour"] * HOURS
    if path == "jobs":
        kind = "premium" if private else "basic"
        found[f"registry {kind.title()}"] = prices[f"registry_{kind}_day"] * DAYS
    frequent, seldom = (2, 2) if jobs else (0, 1)
    series = 3 * (len(handlers) + len(manifest["topics"]))
    if path == "jobs":
        series += sum(bool(job["container_apps_cron"]) for job in jobs) + len(handlers) + 1
    found["alerts"] = (
        frequent * prices["log_alert_5_minutes_month"]
        + seldom * prices["log_alert_15_minutes_month"]
        + series * prices["metric_alert_month"]
    )
    if private:
        endpoints = 3 + bool(handlers) + (path == "jobs")
        found["private endpoints and zones"] = endpoints * (
            prices["private_endpoint_hour"] * HOURS + prices["dns_zone_month"]
        )
    return found


def table(manifest: dict[str, Any], prices: dict[str, Any], sizes: Sizes, seconds: float) -> list[str]:
    """The Markdown of docs/deploy.md."""
    lines = [
        f"Prices of {prices['as_of']}, in US dollars a month. A run and a message take {seconds:g} s of work here.",
        "",
        "| | Functions | Container Apps jobs |",
        "|---|---|---|",
    ]

    def row(title: str, cells: list[str]) -> None:
        lines.append(f"| {title} | {' | '.join(cells)} |")

    paths = ("functions", "jobs")
    idle = {path: recovery(path, sizes, prices) for path in paths}
    row("**idle**: recovery's own executions", [f"{MINUTES:,}" for _ in paths])
    row("recovery's compute", [_compute(idle[path]) for path in paths])
    row(
        "recovery's and the host's storage calls",
        [f"{idle[p].table_calls + idle[p].blob_calls + idle[p].queue_calls:,.0f}" for p in paths],
    )
    row("recovery, free grants taken off", [_dollars(idle[p].price(prices, grants=True)) for p in paths])
    row("recovery, without them", [_dollars(idle[p].price(prices, grants=False)) for p in paths])
    for private in (False, True):
        title = "with a virtual network, fixed" if private else "fixed"
        costs = [fixed(path, prices, manifest, private=private) for path in paths]
        row(
            title,
            [
                f"{_dollars(sum(c.values()))}: " + ", ".join(f"{n} {_dollars(v)}" for n, v in c.items())
                for c in costs
            ],
        )
    runs = {path: a_million_runs(path, sizes, prices, seconds) for path in paths}
    row("**a million runs**: compute", [_compute(runs[path]) for path in paths])
    row("storage calls", [f"{runs[p].table_calls + runs[p].blob_calls:,.0f}" for p in paths])
    row("together", [_dollars(runs[p].price(prices, grants=False)) for p in paths])
    if manifest["handlers"]:
        handlers = manifest["handlers"]
        sent = {path: a_million_messages(path, sizes, prices, seconds, handlers) for path in paths}
        row("**a million messages**: compute", [_compute(sent[path]) for path in paths])
        row("storage calls", [f"{sent[p].table_calls:,.0f}" for p in paths])
        row("Service Bus operations", [f"{sent[p].operations:,.0f}" for p in paths])
        row("together", [_dollars(sent[p].price(prices, grants=False)) for p in paths])
    return lines


def _compute(use: Use) -> str:
    if use.gb_seconds:
        return f"{use.gb_seconds:,.0f} GB-s"
    return f"{use.vcpu_seconds:,.0f} vCPU-s, {use.gib_seconds:,.0f} GiB-s"


def _dollars(value: float) -> str:
    return f"{value:,.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What a month costs on each path, as Markdown.")
    parser.add_argument("--manifest", type=Path, default=HERE / "jobs.json")
    parser.add_argument("--prices", type=Path, default=HERE / "prices.json")
    parser.add_argument(
        "--run-seconds", type=float, default=1.0, help="seconds of work of a run and of a message"
    )
    given = parser.parse_args()
    manifest, prices = (
        json.loads(file.read_text(encoding="utf-8")) for file in (given.manifest, given.prices)
    )
    print("\n".join(table(manifest, prices, Sizes.by_default(manifest["recovery"]), given.run_seconds)))


if __name__ == "__main__":
    main()
