"""One client's connection: asyncio moves the bytes, Proton's engine turns them into events and back."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import proton

from servicebus.conditions import condition
from servicebus.errors import Dropped
from servicebus.flows import Flows
from servicebus.frames import FrameReader
from servicebus.links import Links
from servicebus.sasl import Sasl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicebus.broker import Broker

_log = logging.getLogger(__name__)

_MAX_FRAME = 65_536
_IDLE_TIMEOUT = 480.0  # seconds without a sign of life; clients are told half of it, which is what Azure says


class Connection(asyncio.Protocol):
    """Carries bytes between the socket and Proton; what events mean is up to `Links`."""

    def __init__(self, broker: Broker) -> None:
        self.closed = False
        self.message_format = 0
        self._broker = broker
        self._flush_scheduled = False
        self._sasl = Sasl(broker.keys)
        self._flows = Flows()
        self._frames = FrameReader(self._flows.came)
        self._drains: list[proton.Link] = []  # links to be told that they are drained
        self._collector = proton.Collector()
        self._engine = proton.Connection()
        self._engine.collect(self._collector)
        self._transport = proton.Transport(proton.Transport.SERVER)
        self._transport.max_frame_size = _MAX_FRAME
        self._transport.idle_timeout = _IDLE_TIMEOUT
        self._transport.bind(self._engine)
        self._links = Links(broker, self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._socket: Any = transport
        self._broker.connections.add(self)
        if self._broker.paused:
            self.pause()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Called by asyncio: let go of what Proton holds."""
        self.closed = True
        self._broker.connections.discard(self)
        self._links.forget_all()
        for step in (
            self._transport.close_tail,
            self._transport.close_head,
            self._transport.unbind,
            self._engine.free,
        ):
            try:
                step()
            except proton.ProtonException:
                _log.debug("while closing", exc_info=True)
        self._collector.release()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: hand whole frames to Proton, piece by piece, and act on each."""
        with self._refusing():
            for piece in self._frames.feed(self._past_sasl(data)):
                if self.closed:
                    return
                self.message_format = piece.message_format
                self._push(piece.data)
                self._handle_events()
        self._flush()

    def flush_soon(self) -> None:
        """Send what Proton has to say, once, after the current step."""
        if not self._flush_scheduled and not self.closed:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def answer_drain(self, link: proton.Link) -> None:
        """Tell the client that this link is drained, after what is on its way."""
        self._drains.append(link)

    def beat(self) -> None:
        """Send a heartbeat or miss the client's when its time has come, and come back for the next."""
        if self.closed:
            return
        loop = asyncio.get_running_loop()
        if self._broker.paused:
            loop.call_later(1, self.beat)
            return
        # Proton counts from the tick that notices what was sent: ticks well apart would let the silence double.
        due = self._transport.tick(loop.time()) - loop.time()
        loop.call_later(
            max(0.0, min(due, (self._transport.remote_idle_timeout or _IDLE_TIMEOUT) / 4)), self.beat
        )
        self.flush_soon()

    def detach(self, entity: str | None) -> None:
        """Detach the links of an entity, or all but those for requests."""
        link = self._engine.link_head(0)
        while link is not None:
            self._links.detach(link, entity)
            link = link.next(0)
        self.flush_soon()

    def abort(self) -> None:
        """Cut the connection; nothing more is sent."""
        self.closed = True
        self._socket.abort()

    def close(self) -> None:
        """End the connection politely: the broker is stopping."""
        self._engine.condition = condition("amqp:connection:forced", "The broker is stopping.")
        self._engine.close()
        self._flush()
        self._socket.close()

    def pause(self) -> None:
        """Read nothing until `resume`."""
        self._socket.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self._socket.resume_reading()

    def _past_sasl(self, data: bytes) -> bytes:
        """What of it comes after SASL, which is answered."""
        if self._sasl.done:
            return data
        self._socket.write(self._sasl.feed(data))
        if self._sasl.trusted:
            self._links.trust()
        if self._sasl.failed:
            self._socket.close()
        return self._sasl.rest if self._sasl.done else b""

    def _push(self, data: bytes) -> None:
        sent = 0
        while sent < len(data):
            room = self._transport.capacity()
            if room <= 0:
                raise ValueError("Proton takes no more input")
            self._transport.push(data[sent : sent + room])
            sent += room

    def _handle_events(self) -> None:
        while not self.closed:
            event = self._collector.peek()
            if event is None:
                return
            handler = getattr(self._links, event.type.method, None)
            try:
                if handler:
                    handler(event)
            except Dropped:
                self.abort()
            self._collector.pop()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """What the client sends and cannot be acted on ends its connection, in words; others are served."""
        try:
            yield
        except (ValueError, IndexError, KeyError, proton.ProtonException) as error:
            _log.warning("A connection is closed, for this is no AMQP: %r", error)
            self._refuse("amqp:decode-error", str(error))
        except Exception as error:  # noqa: BLE001 - Python's own exit code 1 means here that a run failed
            _log.exception("a connection is closed")
            self._refuse("amqp:internal-error", repr(error))

    def _refuse(self, name: str, text: str) -> None:
        self.closed = True
        try:
            while (size := self._transport.pending()) > 0:
                self._write(bytes(self._transport.peek(size) or b""))
                self._transport.pop(size)
            self._socket.write(self._flows.farewell(name, text))
        finally:
            self._socket.close()

    def _flush(self) -> None:
        self._flush_scheduled = False
        with self._refusing():
            self._write_all()

    def _write_all(self) -> None:
        while not self.closed:
            size = self._transport.pending()
            if size < 0:
                self._socket.close()
                return
            if size > 0:
                self._write(bytes(self._transport.peek(size) or b""))
                self._transport.pop(size)
            elif self._collector.peek() is None:
                self._answer_drains()
                return
            else:
                self._handle_events()

    def _write(self, data: bytes) -> None:
        self._flows.write(data)
        self._socket.write(data)

    def _answer_drains(self) -> None:
        waiting = [link for link in self._drains if link.queued]
        for link in self._drains:
            if link not in waiting:
                self._socket.write(self._flows.drained(link.name))
        self._drains = waiting
