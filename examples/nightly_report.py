"""Sales per country, one report a night: the same bytes from the same invoices, however often it is written."""

from __future__ import annotations

import csv
import io
from collections import Counter
from typing import TYPE_CHECKING

from runonce import Run, scheduled

from ._invoices import amount, read_invoices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._invoices import Invoice

INPUT = "invoices.csv"


@scheduled("0 0 3 * * *", name="nightly_report", time_zone="Europe/Istanbul", misfire="latest", retries=3)
def nightly_report(run: Run) -> None:
    """Write the sales per country, as CSV and as Markdown."""
    invoices = read_invoices(run.blobs.read_text(INPUT), f"Job {run.job}, blob {INPUT!r}")
    countries = sales(invoices)
    day = f"{run.fire_time:%Y-%m-%d}"
    run.blobs.write(f"reports/{day}.csv", as_csv(countries), content_type="text/csv; charset=utf-8")
    run.blobs.write(
        f"reports/{day}.md", as_markdown(countries, day), content_type="text/markdown; charset=utf-8"
    )
    run.log.info("reported %d invoices from %d countries", len(invoices), len(countries))


def sales(invoices: Iterable[Invoice]) -> list[tuple[str, int, int]]:
    """Country, number of invoices and cents, the largest sum first."""
    number: Counter[str] = Counter()
    cents: Counter[str] = Counter()
    for invoice in invoices:
        number[invoice.country] += 1
        cents[invoice.country] += invoice.cents
    return sorted(((c, number[c], cents[c]) for c in number), key=lambda line: (-line[2], line[0]))


def as_csv(countries: list[tuple[str, int, int]]) -> str:
    """The report for programs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("country", "invoices", "total"))
    writer.writerows((country, n, amount(cents).replace(",", "")) for country, n, cents in countries)
    return out.getvalue()


def as_markdown(countries: list[tuple[str, int, int]], day: str) -> str:
    """The report for people."""
    rows = [f"| {country.replace('|', chr(92) + '|')} | {n} | {amount(c)} |" for country, n, c in countries]
    n, cents = sum(line[1] for line in countries), sum(line[2] for line in countries)
    return "\n".join(
        [
            f"# Sales per country, {day}",
            "",
            "| country | invoices | total |",
            "|---|--:|--:|",
            *rows,
            f"| **all** | **{n}** | **{amount(cents)}** |",
            "",
        ]
    )
