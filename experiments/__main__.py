"""`python -m experiments NAME …|all [--invoices PATH] [--html PATH]`: run experiments; without a name, list them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from experiments import ALONE, EXPERIMENTS
from runonce.errors import RunonceError, StoreError

EXIT_INPUT, EXIT_STORAGE = 5, 6
"""As `runonce` itself has them."""


def main() -> int:
    """Run what the command line names."""
    known = EXPERIMENTS | ALONE
    parser = argparse.ArgumentParser(prog="python -m experiments")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of {', '.join(known)}")
    parser.add_argument("--invoices", type=Path, metavar="PATH", help="a CSV file for the invoice runs")
    parser.add_argument("--html", type=Path, metavar="PATH", help="write the findings as a page, too")
    options = parser.parse_args()
    console = Console(highlight=False)
    if not options.names:
        width = max(map(len, known))
        for name, shows in known.items():
            console.print(f"{name:{width}}  {shows}")
        return 0
    from experiments.program import run_experiments  # noqa: PLC0415

    try:
        return run_experiments(options.names, options.invoices, console, options.html)
    except RunonceError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_STORAGE if isinstance(error, StoreError) else EXIT_INPUT


if __name__ == "__main__":
    sys.exit(main())
