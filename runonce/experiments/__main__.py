"""`python -m runonce.experiments [NAME …] [--invoices PATH]`: the experiments without the command line around them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from runonce.errors import RunonceError, StoreError
from runonce.experiments import EXPERIMENTS, run_experiments

EXIT_INPUT, EXIT_STORAGE = 5, 6
"""As `runonce` itself has them."""


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m runonce.experiments")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--invoices", type=Path, metavar="PATH", help="a CSV file for the invoice runs")
    options = parser.parse_args()
    try:
        return run_experiments(options.names or ["all"], options.invoices, Console(highlight=False))
    except RunonceError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_STORAGE if isinstance(error, StoreError) else EXIT_INPUT


if __name__ == "__main__":
    sys.exit(main())
