"""One target, for as long as libFuzzer is told, guided by what inputs reach: `python -m fuzz.one TARGET OPTION …`."""

from __future__ import annotations

import logging
import sys

import atheris


def main() -> None:
    """Fuzz; libFuzzer ends the process."""
    logging.disable()
    with atheris.instrument_imports(include=["runonce", "servicebus"]):
        from fuzz.targets import TARGETS  # noqa: PLC0415 - so that what it imports is instrumented
    name, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], TARGETS[name].check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
