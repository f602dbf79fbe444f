"""The handlers as `runonce list` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runonce.cli import output

if TYPE_CHECKING:
    from runonce.hosts.discover import Discovered
    from runonce.messages.definition import Handler


def print_handlers(found: Discovered) -> None:
    """The table of handlers."""
    made = output.table("Handler", "Messages of", "Key")
    for one in _sorted(found):
        made.add_row(
            output.styled(
                (one.name, "bold"), (f"\n{one.summary or found.files[one.name].as_posix()}", "dim")
            ),
            output.styled((one.entity, ""), (f"\nlock {one.lock}" if one.lock else "", "dim")),
            _key(one),
        )
        made.add_section()
    output.console().print(made)


def listed_handlers(found: Discovered) -> list[dict[str, Any]]:
    """The same for `--json`."""
    return [
        {
            "name": one.name,
            "summary": one.summary,
            "file": found.files[one.name].as_posix(),
            "queue": one.queue,
            "topic": one.topic or "",
            "subscription": one.subscription or "",
            "forward": one.forward,
            "key": _key(one),
            "lock": one.lock or "",
            "retries": one.retry.retries,
            "max_runtime_seconds": one.max_runtime,
            "concurrency": one.concurrency,
            "on_abandoned": one.on_abandoned,
        }
        for one in _sorted(found)
    ]


def _sorted(found: Discovered) -> list[Handler]:
    return sorted(found.handlers.values(), key=lambda one: one.name)


def _key(one: Handler) -> str:
    if one.key is None:
        return "message id"
    return one.key if isinstance(one.key, str) else "a function"
