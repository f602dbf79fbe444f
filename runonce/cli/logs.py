"""Logs of the command line: one line a record, to stderr, in UTC; as JSON where RUNONCE_LOG says so."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from runonce.watched import choice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

FORMS = ("text", "json")
OF_A_RUN = ("job", "fire_time", "message_id", "attempt", "holder")
"""What a run's own lines have besides."""


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that a second set-up in one process replaces the first and nobody else's."""


class _Line(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


class _Json(logging.Formatter):
    """A record as one JSON object; of a run with what identifies it, and where it is traced with its trace."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name in OF_A_RUN if (value := getattr(record, name, None)) is not None},
        }
        spans: ModuleType | None = sys.modules.get("runonce.telemetry.spans")
        if spans is not None and (ids := spans.current())[0]:
            found["trace_id"], found["span_id"] = ids
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def is_json() -> bool:
    """Whether lines are JSON."""
    return any(
        isinstance(h.formatter, _Json) for h in logging.getLogger().handlers if isinstance(h, _Handler)
    )


@contextmanager
def to_current_stderr() -> Iterator[None]:
    """Write to what sys.stderr is just now, for as long as the block runs."""
    ours = [h for h in logging.getLogger().handlers if isinstance(h, _Handler)]
    before = [h.setStream(sys.stderr) for h in ours]
    try:
        yield
    finally:
        for handler, stream in zip(ours, before, strict=True):
            handler.setStream(stream or handler.stream)


def set_up(*, verbose: bool, level: int = logging.WARNING) -> None:
    """Log from `level` on to stderr; with `verbose` everything of runonce, and where it comes from.

    Raises:
        SettingsError: RUNONCE_LOG is neither text nor json.
    """
    where = "%(name)s: " if verbose else ""
    is_json = choice("RUNONCE_LOG", os.environ.get("RUNONCE_LOG", ""), FORMS) == "json"
    handler = _Handler()
    handler.setFormatter(_Json() if is_json else _Line(f"%(asctime)s %(levelname)-7s {where}%(message)s"))
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
