"""Logs of the command line: one line a record, to stderr, in UTC."""

from __future__ import annotations

import logging
import time
from typing import TextIO


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that a second set-up in one process replaces the first and nobody else's."""


class _Line(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


def set_up(*, verbose: bool, level: int = logging.WARNING) -> None:
    """Log from `level` on to stderr; with `verbose` everything of runonce, and where it comes from."""
    where = "%(name)s: " if verbose else ""
    handler = _Handler()
    handler.setFormatter(_Line(f"%(asctime)s %(levelname)-7s {where}%(message)s"))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else level)
    logging.getLogger("runonce").setLevel(logging.DEBUG if verbose else logging.NOTSET)
    logging.getLogger("azure").setLevel(logging.WARNING)  # one line for each storage call otherwise
    # Who could not be signed in, and how, fills a screen; the command says it in a line.
    logging.getLogger("azure.identity").setLevel(logging.NOTSET if verbose else logging.CRITICAL)
    # A broken job file is said by the commands themselves, where it matters.
    logging.getLogger("runonce.hosts.discover").setLevel(logging.CRITICAL)
