"""Duplicate detection: message ids seen within the window, whatever became of their messages."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from servicebus.timers import now

if TYPE_CHECKING:
    from servicebus.store import Store
    from servicebus.values import Raw


class SeenIds:
    """The memory of one queue or topic; empty and idle when its window is 0."""

    def __init__(self, store: Store, entity: str, window: float) -> None:
        self._store = store
        self._entity = entity
        self._window = window
        self._until: OrderedDict[Raw, float] = OrderedDict(store.seen(entity))

    def again(self, message_id: Raw | None) -> bool:
        """Whether this id was seen within the window; it is remembered if not."""
        if not self._window or message_id is None:
            return False
        moment = now()
        while self._until and next(iter(self._until.values())) <= moment:
            old, _ = self._until.popitem(last=False)
            self._store.forget(self._entity, old)
        if message_id in self._until:
            return True
        self._until[message_id] = moment + self._window
        self._store.remember(self._entity, message_id, moment + self._window)
        return False
