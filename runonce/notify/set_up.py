"""Which of these hooks a process has, by its settings and its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runonce.execution import hooks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from runonce.messages.definition import Handler
    from runonce.runs.definition import ScheduledJob

LAST_WORDS = 5.0
"""Seconds for what is still to be told when a process ends."""


def listen(
    url: str, jobs: Mapping[str, ScheduledJob], handlers: Mapping[str, Handler], made: ExitStack
) -> None:
    """Add what is wanted, to be removed when `made` is closed; what a host of this process has added stays."""
    functions = {job.name: job.on_failure for job in jobs.values() if job.on_failure}
    functions |= {one.name: one.on_failure for one in handlers.values() if one.on_failure}
    pings = {job.name: job.ping_url for job in jobs.values() if job.ping_url}
    if functions:
        from runonce.notify.failures import OnFailure  # noqa: PLC0415 - only where it is used

        _add(OnFailure(functions), made)
    if pings:
        from runonce.notify.pings import Pings  # noqa: PLC0415 - as above

        _add(Pings(pings), made)
    if url:
        from runonce.notify.webhook import Webhook  # noqa: PLC0415 - as above

        webhook = Webhook(url)
        made.callback(webhook.close, LAST_WORDS)
        _add(webhook, made)


def _add(one: hooks.Hooks, made: ExitStack) -> None:
    if not hooks.added(type(one)):
        hooks.add(one)
        made.callback(hooks.remove, one)
