"""Messages of Service Bus as the broker has them, where somebody else has received them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runonce.settings import ServiceBusConnection
    from runonce.transports.bus_receiver import Receiver, Source


class ServiceBusOriginals:
    """Reads messages that somebody else has received, as the Functions host does; safe to call from many threads."""

    def __init__(self, connection: ServiceBusConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._receivers: dict[Source, Receiver] = {}

    def read(self, source: Source, number: int) -> bytes | None:
        """The message of that sequence number, for `Delivery.original`; raises TransportError."""
        from runonce.transports.bus_receiver import Receiver  # noqa: PLC0415 - the SDK, when it is used

        with self._lock:
            if source not in self._receivers:
                self._receivers[source] = Receiver(self._connection, source)
            return self._receivers[source].original(number)

    def close(self) -> None:
        """Let the connections go."""
        with self._lock:
            for receiver in self._receivers.values():
                receiver.close()
