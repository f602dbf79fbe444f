"""Peek-lock: who may settle which message, and until when.

A lock belongs to a message, not to the link that received it: it outlives a lost connection, and the client
then settles through the management node with the token alone.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servicebus.errors import lock_lost
from servicebus.timers import now

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicebus.message import Message
    from servicebus.queue import MessageQueue
    from servicebus.timers import Timers


@dataclass(slots=True, eq=False)
class Lock:
    """One message, handed to one receiver for a while."""

    token: uuid.UUID
    queue: MessageQueue
    message: Message
    until: float


class LockTable:
    """The locks of one queue, soonest to expire first: they all last equally long, so that is their order."""

    def __init__(self, seconds: float, timers: Timers, expired: Callable[[Lock], None]) -> None:
        self._seconds = seconds
        self._timers = timers
        self._expired = expired
        self._locks: OrderedDict[uuid.UUID, Lock] = OrderedDict()
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._locks)

    def take(self, queue: MessageQueue, message: Message) -> Lock:
        """Lock a message."""
        lock = Lock(uuid.uuid4(), queue, message, now() + self._seconds)
        message.lock = self._locks[lock.token] = lock
        if not self._sweeping:
            self._sweeping = True
            self._timers.at(lock.until, self._sweep)
        return lock

    def held(self, token: uuid.UUID) -> Lock:
        """The lock of this token; refused once it is over, even if the sweep has not come by yet."""
        lock = self._locks.get(token)
        if lock is None or lock.until <= now():
            raise lock_lost()
        return lock

    def renew(self, lock: Lock) -> None:
        """Start the lock's duration again."""
        lock.until = now() + self._seconds
        self._locks.move_to_end(lock.token)

    def free(self, lock: Lock) -> None:
        """Forget the lock."""
        del self._locks[lock.token]
        lock.message.lock = None

    def lose(self) -> None:
        """End every lock now, as if its time were over."""
        for lock in list(self._locks.values()):
            self._expired(lock)

    def _sweep(self) -> None:
        while self._locks:
            lock = next(iter(self._locks.values()))
            if lock.until > now():
                self._timers.at(lock.until, self._sweep)
                return
            self._expired(lock)
        self._sweeping = False
