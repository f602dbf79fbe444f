"""What a broker operation can end with other than success."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - it is an answer to the client, not a failure of the broker
    """The operation was not applied; the client is told why."""

    def __init__(self, condition: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.condition = condition
        self.text = text
        self.status = status


class Dropped(Exception):  # noqa: N818 - asked for by a test
    """Cut the client's connection instead of answering."""


class Silenced(Exception):  # noqa: N818 - asked for by a test
    """Leave the connection open and never answer."""


def lock_lost() -> Refused:
    """The lock has expired or was settled; Azure's clients turn this condition into MessageLockLostError."""
    return Refused(
        "com.microsoft:message-lock-lost",
        "The lock is not held: it expired, or the message was settled already.",
        410,
    )


def not_found(text: str) -> Refused:
    """A message named by its sequence number is not there, or not in the state asked for."""
    return Refused("com.microsoft:message-not-found", text, 404)


def quota_exceeded(path: str, size: int, quota: int) -> Refused:
    """The entity is full; receiving goes on."""
    return Refused(
        "amqp:resource-limit-exceeded",
        f"The maximum entity size has been reached or exceeded for '{path}'. Size of entity in bytes:{size},"
        f" Max entity size in bytes: {quota}.",
        403,
    )
