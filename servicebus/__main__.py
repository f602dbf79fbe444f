"""`python -m servicebus`: a local broker for a terminal, or for `launcher.py` with `--control`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
from pathlib import Path

from servicebus.entities import declared
from servicebus.launcher import HINT, connection_string

_DEFAULT_PORT = 5673


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m servicebus", description=__doc__)
    parser.add_argument(
        "--port", type=int, default=_DEFAULT_PORT, help="0 takes a free one (default %(default)s)"
    )
    parser.add_argument(
        "--queue", action="append", default=[], metavar="NAME[:SETTING=VALUE,…]",
        help="settings: lock, max_delivery, dedup, ttl, dead_letter_expired, quota, forward,"
        " forward_dead_letters; durations in seconds, the quota in bytes",
    )  # fmt: skip
    parser.add_argument(
        "--topic", action="append", default=[], metavar="NAME:SUBSCRIPTION,…[,SETTING=VALUE,…]"
    )
    parser.add_argument(
        "--subscription", action="append", default=[],
        metavar="TOPIC/NAME:SETTING=VALUE,…[,filter=SQL or JSON]",
        help="a subscription of a --topic that needs more than a name; its filter comes last",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, help="keep messages here; without it they live in memory")
    parser.add_argument(
        "--key", action="append", default=[], metavar="NAME=KEY", help="check tokens; without it, any passes"
    )
    parser.add_argument("--control", action="store_true", help="commands on standard input, see control.py")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        entities = declared(options.queue, options.topic, options.subscription)
        keys = dict(key.split("=", 1) for key in options.key)
    except ValueError as error:
        parser.error(str(error))
    if not entities:
        parser.error("declare at least one --queue or --topic")
    try:
        from servicebus import control, server  # noqa: PLC0415 - needs Proton, and says so if it is missing
    except ImportError as error:
        sys.stderr.write(f"{error}. {HINT}\n")
        return 1
    path = None
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        path = options.folder / "servicebus.db"
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")

    def ready(port: int) -> None:
        if options.control:
            control.say({"port": port})
            return
        name, key = next(iter(keys.items()), (None, None))
        sys.stdout.write(f"Listening on {server.HOST}:{port}. Stop with Ctrl-C. Connect with\n")
        sys.stdout.write(f"{connection_string(port, name, key)}\n")
        sys.stdout.flush()

    serving = server.serve(
        entities, port=options.port, path=path, keys=keys, controlled=options.control, ready=ready
    )
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serving)
    except (OSError, ValueError) as error:  # the port is taken, or an entity is declared twice
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
