"""A connection's sessions and links: who may attach to what, and what comes in on each.

The methods named `on_…` are Proton's events.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import proton

from servicebus import limits, requests, tokens, transfers
from servicebus.conditions import condition
from servicebus.errors import Refused
from servicebus.message import BATCH_FORMAT, unbatch
from servicebus.relays import Relay

if TYPE_CHECKING:
    from servicebus.broker import Broker
    from servicebus.connection import Connection
    from servicebus.locks import Lock
    from servicebus.queue import MessageQueue

_log = logging.getLogger(__name__)

Event = Any
"""A proton.Event, whose parts Proton types as optional although each event has those of its kind."""

_CREDIT = 1000  # transfers a sender may have on its way
_NO_SESSIONS = "This local broker has no sessions."
_SESSION_FILTER = "com.microsoft:session-filter"


@dataclass(eq=False)
class Receiver:
    """A client's receiver on a queue: the broker's sending end of the link."""

    link: proton.Sender
    connection: Connection
    queue: MessageQueue
    deletes: bool
    waiting: bool = False
    gone: bool = False

    @property
    def has_credit(self) -> bool:
        """Whether it is connected and asks for more."""
        return not (self.gone or self.connection.closed) and self.link.credit > 0

    def send(self, message: bytes, lock: Lock | None) -> None:
        """Hand a message over."""
        transfers.send(self.link, message, lock)
        self.connection.flush_soon()

    def cut(self) -> None:
        """Cut its connection."""
        self.connection.abort()


class Links:
    """What one connection is attached to."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self._broker = broker
        self._connection = connection
        self._receivers: dict[str, Receiver] = {}  # by link name
        self._replies: list[tuple[str, proton.Sender]] = []  # nodes, and where their answers go
        self._targets: dict[str, MessageQueue | str] = {}  # by link name: an entity, or a node for requests
        self._claims: set[str] = set()  # entities this connection showed a valid token for

    def forget_all(self) -> None:
        """The connection is gone. Locks stay: they end by settling or by time."""
        for receiver in self._receivers.values():
            receiver.gone = True
        self._receivers.clear()
        self._replies.clear()
        self._targets.clear()

    def detach(self, link: proton.Link, entity: str | None) -> None:
        """Detach a link in Azure's words for one that is idle, if it leads to this entity; None is any."""
        receiver, target = self._receivers.get(link.name), self._targets.get(link.name)
        queue = receiver.queue if receiver else target
        if queue is None or isinstance(queue, str) or entity not in (None, queue.name):
            return
        link.condition = condition(
            "amqp:link:detach-forced",
            f"The link '{link.name}' is force detached. Code: {'consumer' if receiver else 'publisher'}."
            f" Details: AmqpMessage{'Consumer' if receiver else 'Publisher'}.IdleTimerExpired:"
            " Idle timeout: 00:10:00.",
        )
        self._detach(link)
        link.close()

    def on_connection_remote_open(self, event: Event) -> None:
        """Answer in kind."""
        event.connection.container = "local-service-bus"
        event.connection.open()
        self._connection.beat()

    def on_connection_remote_close(self, event: Event) -> None:
        """Answer in kind."""
        event.connection.close()

    def on_session_remote_open(self, event: Event) -> None:
        """Answer in kind."""
        event.session.open()

    def on_session_remote_close(self, event: Event) -> None:
        """Answer in kind."""
        event.session.close()

    def on_link_remote_open(self, event: Event) -> None:
        """Attach a client's sender or receiver to what its address names, or refuse."""
        link = event.link
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        try:
            self._attach(link)
        except Refused as refusal:
            # A refusing attach names neither source nor target, and a detach with the reason follows at once.
            link.condition = condition(refusal.condition, refusal.text)
            link.source.type = link.target.type = proton.Terminus.UNSPECIFIED
            link.open()
            link.close()
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.open()

    def on_link_remote_close(self, event: Event) -> None:
        """The client is done with a link."""
        self._detach(event.link)
        event.link.close()

    def on_link_remote_detach(self, event: Event) -> None:
        """The client leaves a link for now; here that is the same."""
        self._detach(event.link)
        event.link.detach()

    def on_link_flow(self, event: Event) -> None:
        """A receiver asks for messages, or for its unused credit back."""
        link = event.link
        receiver = self._receivers.get(link.name) if link.is_sender else None
        if receiver is None:
            return
        if link.credit > 0 and not receiver.waiting:
            receiver.queue.attach(receiver)
            receiver.queue.dispatch()
        if link.drain_mode and not link.drained():
            self._connection.answer_drain(link)

    def on_delivery(self, event: Event) -> None:
        """A message or request came in, or a receiver settled what it holds."""
        link, delivery = event.link, event.delivery
        if link.state & proton.Endpoint.LOCAL_CLOSED:
            return  # it was detached: the client settles by the lock once it knows
        if link.is_sender:
            transfers.settle(self._broker, delivery)
        else:
            transfers.take_in(link, delivery, lambda raw: self._receive(link, raw))

    def trust(self) -> None:
        """The client showed a key: it needs no token."""
        self._claims.add("")

    def _attach(self, link: Any) -> None:
        if link.remote_target.type == proton.Terminus.COORDINATOR:
            raise Refused("amqp:not-implemented", "This local broker has no transactions.")
        address = (link.remote_source if link.is_sender else link.remote_target).address or ""
        node = tokens.scope(address)
        entity_name, _, suffix = node.rpartition(requests.MANAGEMENT)
        is_node = node == requests.CBS or (bool(entity_name) and not suffix)
        if node != requests.CBS:
            self._check_claim(entity_name if is_node else node)
        if is_node:
            if node != requests.CBS:
                self._entity(entity_name, address)
            if link.is_sender:
                self._replies.append((node, link))
            else:
                self._targets[link.name] = node
        elif link.is_sender:
            self._receivers[link.name] = self._receiver(link, self._entity(node, address))
        else:
            self._targets[link.name] = _sendable(self._entity(node, address))
            link.max_message_size = limits.MAX_MESSAGE
        if link.is_receiver:
            link.flow(_CREDIT)

    def _receiver(self, link: proton.Sender, queue: MessageQueue) -> Receiver:
        if isinstance(queue, Relay):
            raise Refused("amqp:not-allowed", queue.no_receivers)
        if _asks_for_session(link):
            # JavaScript's acceptSession puts words of its own in place of these, so they are said here too.
            _log.warning("A client asked for a session of %s. %s", queue.path, _NO_SESSIONS)
            raise Refused("amqp:not-implemented", _NO_SESSIONS)
        return Receiver(
            link, self._connection, queue, deletes=link.remote_snd_settle_mode == proton.Link.SND_SETTLED
        )

    def _entity(self, name: str, address: str) -> MessageQueue:
        try:
            return self._broker.entities[name]
        except KeyError:
            text = f"The messaging entity '{address}' could not be found."
            raise Refused("amqp:not-found", text, 404) from None

    def _check_claim(self, entity: str) -> None:
        if not self._broker.keys:
            return
        if not any(claim in ("", entity) or entity.startswith(claim + "/") for claim in self._claims):
            raise Refused("amqp:unauthorized-access", f"No valid token was shown for '{entity}'.", 401)

    def _detach(self, link: proton.Link) -> None:
        if not link.is_sender:
            self._targets.pop(link.name, None)
            return
        receiver = self._receivers.pop(link.name, None)
        if receiver:
            receiver.gone = True
        self._replies = [(node, reply) for node, reply in self._replies if reply is not link]

    def _receive(self, link: proton.Receiver, raw: bytes) -> None:
        """A whole delivery: a message for an entity, or a request to a node."""
        target = self._targets.get(link.name)
        if target is None:
            raise Refused("amqp:not-found", "The link is closed.")
        if not isinstance(target, str):
            limits.check_size(len(raw))
            batch = self._connection.message_format == BATCH_FORMAT
            with self._broker.operation("send", target.name):
                target.publish(unbatch(raw) if batch else [raw])
            return
        to, reply = requests.answer(self._broker, self._claims, target, raw)
        links = [each for node, each in self._replies if node == target]
        named = [each for each in links if each.remote_target.address == to]
        if links:
            transfers.send((named or links)[-1], reply, None)


def _sendable(entity: MessageQueue) -> MessageQueue:
    if "/subscriptions/" in entity.name or entity.name.endswith("$deadletterqueue"):
        raise Refused("amqp:not-allowed", f"Nothing can be sent to {entity.name}: the broker fills it.")
    return entity


def _asks_for_session(link: proton.Sender) -> bool:
    wanted = link.remote_source.filter
    wanted.rewind()
    if wanted.next() is None:
        return False
    filters = wanted.get_object()
    return isinstance(filters, dict) and _SESSION_FILTER in filters
