"""What is in hand, at the foot of a terminal: drawn anew twice a second, log lines above it. In a pipe nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from runonce.cli import logs, output, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from runonce.cli.context import Context

MOST = 12
"""Rows; what else is in hand is counted."""


@contextmanager
def in_hand(context: Context, foot: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Show what the process is working on while the block runs, where standard error is a terminal.

    Args:
        context: The command's.
        foot: The line below, asked for each time.
    """
    from rich.console import Console  # noqa: PLC0415 - as in `output`
    from rich.live import Live  # noqa: PLC0415

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal or logs.is_json():
        yield
        return
    with (
        Live(
            get_renderable=lambda: _table(context, foot()),
            console=console,
            refresh_per_second=2,
            transient=True,
        ),
        logs.to_current_stderr(),  # which is above the picture now
    ):
        yield


def _table(context: Context, foot: str) -> Table:
    runtime = context.runtime
    runs = list(runtime.dispatcher.running)
    deliverer = vars(runtime).get("deliverer")  # made where messages are handled, and only there
    messages = [] if deliverer is None else list(deliverer.running)
    now = runtime.dispatcher.server_clock.now()
    made = output.table("Job or handler", "For", "Attempt", "Since", "Done")
    rows = [
        (one.job.name, times.to_utc(one.claim.run.fire_time), one.claim.run.attempt, one.claim.run.started_at,
         one.claim.run.progress)
        for one in runs
    ] + [
        (one.handler.name, one.message.key, one.claim.row.attempt, one.claim.row.started_at, one.claim.row.progress)
        for one in messages
    ]  # fmt: skip
    for name, what, attempt, since, progress in rows[:MOST]:
        took = "" if since is None else f"{max(0.0, (now - since).total_seconds()):.0f} s"
        done = ", ".join(f"{count} {items}" for items, count in progress.items())
        made.add_row(name, output.styled((what, "")), str(attempt), took, done)
    more = f"and {len(rows) - MOST} more; " if len(rows) > MOST else ""
    made.caption, made.caption_justify = f"{more}{foot}" or "nothing is in hand", "left"
    made.show_header = bool(rows)
    return made
