"""Misbehaviour on request: what a crash explorer does at each boundary between a client and the broker.

An operation is something a client asks for: see `OPERATIONS`. A fault strikes before it is applied (nothing
happened, and the client does not know) or after (it happened, and the client does not know).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from servicebus.errors import Dropped, Refused, Silenced

OPERATIONS = (
    "send", "schedule", "cancel", "deliver", "receive-deferred", "peek", "renew",
    "complete", "abandon", "defer", "dead-letter", "release",
)  # fmt: skip
"""`deliver`: a message goes to a receiver; applied means locked (or removed, in receive-and-delete mode)."""

FAULTS = {
    "drop": "cut the connection instead of answering",
    "silence": "never answer, the connection stays open",
    "exit": "end the broker's process at once, as a kill would",
}
"""Each comes as `<fault>-before-apply` and `<fault>-after-apply`. What is in `REFUSALS` is never applied."""

REFUSALS = {
    "busy": Refused("com.microsoft:server-busy", "The broker was told to be busy; nothing was done.", 503),
    "full": Refused(
        "amqp:resource-limit-exceeded",
        "The maximum entity size has been reached or exceeded, as the broker was told; nothing was done.",
        403,
    ),
}

_EXIT_CODE = 70


@dataclass
class Fault:
    """One fault, armed until it has struck `count` times."""

    kind: str
    operation: str
    entity: str | None
    count: int
    skip: int

    def __post_init__(self) -> None:
        known = {*REFUSALS, *(f"{name}-{when}-apply" for name in FAULTS for when in ("before", "after"))}
        if self.kind not in known:
            raise ValueError(f"no fault {self.kind!r}; there are {', '.join(sorted(known))}")
        if self.operation not in OPERATIONS:
            raise ValueError(f"no operation {self.operation!r}; there are {', '.join(OPERATIONS)}")
        if not (
            isinstance(self.entity, str | None) and isinstance(self.count, int) and isinstance(self.skip, int)
        ):
            raise TypeError("entity is a name, count and skip are whole numbers")
        if self.count < 1 or self.skip < 0:
            raise ValueError(f"count={self.count}, skip={self.skip}: strike at least once, skip none or some")

    @property
    def when(self) -> str:
        """Before or after the operation is applied."""
        return "after" if self.kind.endswith("after-apply") else "before"

    def strike(self) -> None:
        """Do the harm."""
        if self.kind in REFUSALS:
            raise REFUSALS[self.kind]
        name = self.kind.partition("-")[0]
        if name == "drop":
            raise Dropped
        if name == "silence":
            raise Silenced
        os._exit(_EXIT_CODE)


class Faults:
    """The armed faults, the first armed first."""

    def __init__(self) -> None:
        self._armed: list[Fault] = []
        self.struck = 0

    def arm(self, fault: Fault) -> None:
        """Let this fault strike when its operation comes by."""
        self._armed.append(fault)

    def clear(self) -> None:
        """Disarm all."""
        self._armed.clear()

    def meet(self, when: str, operation: str, entity: str) -> None:
        """An operation passes; the first fault that waits for it strikes."""
        for fault in self._armed:
            meant = fault.entity is None or fault.entity.lower() == entity
            if not (meant and fault.operation == operation and fault.when == when):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.count -= 1
            if not fault.count:
                self._armed.remove(fault)
            self.struck += 1
            fault.strike()
            return
