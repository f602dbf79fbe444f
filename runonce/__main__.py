"""`python -m runonce` and `runonce`: the command line, or in one line what it needs to be installed."""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1] / "dev.py"


def main() -> None:
    """Run the command line; the exit codes are in `runonce.cli.exits`."""
    try:
        from runonce.cli import main as cli  # noqa: PLC0415 - an extra, and a moment in which Ctrl-C may come
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "runonce":
            raise
        # A checkout has all of it in .venv, where the Python that runs this is not.
        remedy = (
            f"run `python {CHECKOUT.name} {' '.join(sys.argv[1:2]) or '--help'} ...`, or activate .venv first"
            if CHECKOUT.exists()
            else 'pip install "runonce[cli]"'
        )
        sys.exit(
            f"error: the command line needs the package {error.name!r}, which is not installed: {remedy}"
        )
    except KeyboardInterrupt:
        sys.exit(130)
    cli()


if __name__ == "__main__":
    main()
