"""The messages of scheduled jobs, as `runonce.runs.follow_ups.FollowUps` wants them made, sent and waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runonce.errors import UnknownJobError
from runonce.messages.message import Message
from runonce.messages.reading import read_key
from runonce.messages.rows import SHARDS, MessageRow, State, check_outbox, partition, place
from runonce.messages.sending import follow_up, send_outbox
from runonce.stores.columns import to_text
from runonce.transports.protocols import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runonce.execution.registry import Registry
    from runonce.messages.definition import Handler
    from runonce.runs.rows import RunRow
    from runonce.transports.protocols import Sender

CLAIM = "claim:"


class JobsMessages:
    """Makes them with ids of the job, its fire time and their ordinal; the sender is opened when it is first used.

    Args:
        sender: Opens it.
        claims: Where the claims of messages are.
        handlers: All there are, by name.
    """

    def __init__(
        self, sender: Callable[[], Sender], claims: Registry, handlers: Mapping[str, Handler]
    ) -> None:
        self._sender = sender
        self._claims = claims
        self._handlers = handlers

    def make(
        self, run: RunRow, ordinal: int, handler: Handler, body: Any, key: str | None
    ) -> Mapping[str, Any]:
        """A message of the run; no queue has a job's name and no entity, so no handler's id is like it."""
        item = follow_up(_origin(run), ordinal, handler, body, key)
        if not self._waiting_for(handler.name):
            return item
        came = Delivery(item["body"].encode(), item["id"], sent_as=item["sent_as"])
        known = read_key(handler, Message(handler, came))
        _, row_key = place(self._claims.namespace, handler.entity, handler.name, known)
        return {**item, "member": [handler.name, row_key.removeprefix(CLAIM)]}

    def check(self, run: RunRow, outbox: Sequence[Mapping[str, Any]]) -> None:
        """Whether they fit on a row."""
        check_outbox(run.job, outbox)

    def send(self, outbox: Sequence[Mapping[str, Any]]) -> None:
        """Send them, grouped by where they go."""
        send_outbox(self._sender(), outbox, "")

    def not_done(self, handler: str, members: Sequence[str], until: float) -> Sequence[str]:
        """One read for each that is done, and for the first that is not."""
        clock, table = self._claims.clock, self._claims.table
        for done, member in enumerate(members):
            where = partition(self._claims.namespace, handler, int(member[:4], 16) % SHARDS)
            row = table.get(where, CLAIM + member) if clock.elapsed() <= until else None
            if row is None or row.values.get("state") != State.DONE:
                return members[done:]
        return []

    def join(self, run: RunRow) -> None:
        """Send each handler that waits its message, which is known by the run and whom it waited for."""
        outbox = []
        for name, count in run.fanned_out.items():
            body = {"job": run.job, "fire_time": to_text(run.fire_time), "handler": name, "count": count}
            key = f"{run.idempotency_key}/after {name}"
            waiting = self._waiting_for(name)
            if not waiting:
                raise UnknownJobError(f"no handler has after_all={name} in this host's code.")
            outbox += [follow_up(_origin(run), -1, one, body, key) for one in waiting]
        self.send(outbox)

    def _waiting_for(self, name: str) -> list[Handler]:
        return [one for one in self._handlers.values() if one.after_all and one.after_all.name == name]


def _origin(run: RunRow) -> MessageRow:
    return MessageRow(run.job, "", run.idempotency_key, generation=run.generation)
