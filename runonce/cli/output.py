"""What commands print: results to stdout, as a table for people or as JSON; everything else to stderr."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import typer

from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from runonce.hosts.discover import Discovered

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
WIDE = 110
"""From so many columns on a table may have a column more."""
STYLES = {
    "succeeded": "green",
    "failed": "red",
    "unknown": "red",
    "abandoned": "yellow",
    "retrying": "yellow",
    "stopped": "yellow",
    "running": "cyan",
    "skipped": "dim",
}


def console() -> Console:
    """The console of stdout; on a pipe 80 columns (or COLUMNS) and no colour."""
    from rich.console import Console  # noqa: PLC0415 - `--json` and `run` do without

    return Console(highlight=False, markup=False, emoji=False)


def table(*columns: str, title: str | None = None) -> Table:
    """A light table whose cells fold rather than lose anything."""
    from rich import box  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415

    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def styled(*parts: tuple[str, str]) -> Any:
    """Text from (text, style) parts; control characters, as a message may hold, are shown and not obeyed."""
    from rich.text import Text  # noqa: PLC0415 - as above

    return Text.assemble(
        *((CONTROL.sub(lambda found: repr(found[0])[1:-1], text), style) for text, style in parts)
    )


def print_json(value: Any) -> None:
    """Print a value of dataclasses, dictionaries and lists as JSON: instants in UTC with Z, nothing is null."""
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """The value as JSON knows it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return to_text(value)
    if isinstance(value, Enum):
        return value.value
    return value


def short(text: str, most: int) -> str:
    """A text as one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def warn_of_broken(found: Discovered) -> None:
    """The files of the jobs folder that could not be used, to stderr."""
    for error in found.broken:
        warn(str(error))


def note(text: str) -> None:
    """A remark, to stderr."""
    typer.secho(f"note: {text}", err=True, dim=True)


def warn(text: str) -> None:
    """A warning, to stderr."""
    typer.secho(f"warning: {text}", err=True, fg="yellow")


def complain(text: str) -> None:
    """Why the command could not do its work, to stderr."""
    typer.secho(f"error: {text}", err=True, fg="red")
