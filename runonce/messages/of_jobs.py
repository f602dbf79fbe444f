"""The messages that scheduled jobs send, as `runonce.runs.follow_ups.FollowUps` wants them made and sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runonce.messages.rows import MessageRow, check_outbox
from runonce.messages.sending import follow_up, send_outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runonce.messages.definition import Handler
    from runonce.runs.rows import RunRow
    from runonce.transports.protocols import Sender


class JobsMessages:
    """Makes them with ids of the job, its fire time and their ordinal; the sender is opened when it is first used."""

    def __init__(self, sender: Callable[[], Sender]) -> None:
        self._sender = sender

    def make(
        self, run: RunRow, ordinal: int, handler: Handler, body: Any, key: str | None
    ) -> Mapping[str, Any]:
        """A message of the run; no queue has a job's name and no entity, so no handler's id is like it."""
        origin = MessageRow(run.job, "", run.idempotency_key, generation=run.generation)
        return follow_up(origin, ordinal, handler, body, key)

    def check(self, run: RunRow, outbox: Sequence[Mapping[str, Any]]) -> None:
        """Whether they fit on a row."""
        check_outbox(run.job, outbox)

    def send(self, outbox: Sequence[Mapping[str, Any]]) -> None:
        """Send them, grouped by where they go."""
        send_outbox(self._sender(), outbox, "")
