"""A stored message: its encoded sections, and the few fields the broker decides by."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

from servicebus import values

if TYPE_CHECKING:
    from servicebus.locks import Lock
    from servicebus.values import Raw

BATCH_FORMAT = 0x80013700
"""The message-format of an envelope whose data sections each hold one encoded message."""

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION, DATA = 0x70, 0x71, 0x72, 0x73, 0x74, 0x75

_SEQUENCE_NUMBER = values.symbol("x-opt-sequence-number")
_ENQUEUED = values.symbol("x-opt-enqueued-time")
_LOCKED_UNTIL = values.symbol("x-opt-locked-until")
_SCHEDULED = values.symbol("x-opt-scheduled-enqueue-time")
_STATE = values.symbol("x-opt-message-state")
_DEAD_LETTER_SOURCE = values.symbol("x-opt-deadletter-source")
_FIRST_NUMBER = values.symbol("x-opt-enqueue-sequence-number")
_OWN = (_SEQUENCE_NUMBER, _ENQUEUED, _LOCKED_UNTIL, _STATE, _DEAD_LETTER_SOURCE, _FIRST_NUMBER)
_TTL = 2  # place in the header
_REASON = values.string("DeadLetterReason")
_DESCRIPTION = values.string("DeadLetterErrorDescription")


class State(IntEnum):
    """The numbers clients read from a peeked message."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(slots=True, eq=False)
class Message:
    """One message of one queue."""

    header: list[Raw] = field(default_factory=list)
    annotations: dict[Raw, Raw] = field(default_factory=dict)
    properties: bytes = b""
    application: bytes = b""
    body: bytes = b""
    message_id: Raw | None = None
    sequence_number: int = 0
    enqueued: float = 0.0
    delivery_count: int = 0
    state: State = State.ACTIVE
    due: float = 0.0
    expires: float | None = None
    lock: Lock | None = None
    hops: int = 0
    """How many entities have forwarded it."""

    @classmethod
    def sent(cls, raw: bytes) -> Self:
        """Read what a client sends, without what only the broker says of a message; one without an id gets one.

        ValueError or IndexError when it is none, or has a part that could not be read later on.
        """
        message = cls.parse(raw)
        if not all(isinstance(name, str) for name in message.application_properties()):
            raise ValueError("the name of an application property is no text")
        _ = (
            message.time_to_live,
            message.scheduled_for,
            [values.decode(one) for one in message.property_fields()],
        )
        for name in _OWN:
            message.annotations.pop(name, None)
        if message.message_id is None:
            message.message_id = values.string(uuid.uuid4().hex)
            fields = [message.message_id, *message.property_fields()[1:]]
            message.properties = _section_start(PROPERTIES) + values.encode_list(fields)
        return message

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read an encoded message; ValueError or IndexError when it is none."""
        message = cls()
        body: list[bytes] = []
        for code, section, value in _sections(raw):
            if code == HEADER:
                message.header = values.elements(value)
            elif code == ANNOTATIONS:
                message.annotations = values.map_of(value)
            elif code == PROPERTIES:
                message.properties = _section_start(PROPERTIES) + value
                first = values.elements(value, limit=1)
                message.message_id = first[0] if first and first[0] != values.NULL else None
            elif code == APPLICATION:
                message.application = _section_start(APPLICATION) + value
            elif code != DELIVERY_ANNOTATIONS:  # those are for the next hop only, and the SDK sends them last
                body.append(section)
        message.body = b"".join(body)
        return message

    @property
    def scheduled_for(self) -> float:
        """When the sender wants it delivered, in seconds since 1970; 0 for now."""
        return values.seconds_of(self.annotations.get(_SCHEDULED))

    @property
    def time_to_live(self) -> float | None:
        """The sender's limit in seconds, or None."""
        ttl = self.header[_TTL] if len(self.header) > _TTL else values.NULL
        return None if ttl == values.NULL else values.integer(ttl) / 1000

    @property
    def size(self) -> int:
        """What it takes of a quota, in bytes."""
        return len(self.properties) + len(self.application) + len(self.body)

    def live(self, seconds: float) -> None:
        """Set the time to live that holds here, which is what receivers see, up to the 49 days AMQP can say."""
        milliseconds = min(int(1000 * seconds), 0xFFFFFFFF)
        self.header = [*(self.header + [values.NULL] * 3)[:_TTL], values.uint32(milliseconds)]

    def property_fields(self) -> list[Raw]:
        """The fields of AMQP's properties, those at the end may be missing."""
        return values.elements(self.properties[3:]) if self.properties else []

    def application_properties(self) -> dict[str, Any]:
        """The sender's own properties."""
        if not self.application:
            return {}
        return {
            values.decode(key): values.decode(raw) for key, raw in values.map_of(self.application[3:]).items()
        }

    def copy(self) -> Message:
        """The same message for another queue, where its deliveries count from nought."""
        first = {_FIRST_NUMBER: values.long(self.sequence_number)}
        return replace(self, annotations=first | self.annotations, header=list(self.header), delivery_count=0)

    def encode(self, locked_until: float | None = None, *, with_state: bool = False) -> bytes:
        """The message as a receiver gets it."""
        durable_priority_ttl = (self.header + [values.NULL] * 3)[:3]
        header = [*durable_priority_ttl, values.NULL, values.uint32(self.delivery_count)]
        annotations = self.annotations | {
            _SEQUENCE_NUMBER: values.long(self.sequence_number),
            _ENQUEUED: values.timestamp(self.enqueued),
        }
        if locked_until is not None:
            annotations[_LOCKED_UNTIL] = values.timestamp(locked_until)
        if with_state:
            annotations[_STATE] = values.int32(self.state)
        return b"".join(
            (
                _section_start(HEADER) + values.encode_list(header),
                _section_start(ANNOTATIONS) + values.encode_map(annotations),
                self.properties,
                self.application,
                self.body,
            )
        )

    def merge(self, properties: dict[Raw, Raw]) -> None:
        """Set application properties, given as encoded keys and values."""
        if properties:
            merged = values.map_of(self.application[3:]) if self.application else {}
            self.application = _section_start(APPLICATION) + values.encode_map(merged | properties)

    def explain(self, source: str, reason: str | None, description: str | None) -> None:
        """Note where and why the message died, as clients look for it; it is an ordinary message from here on."""
        self.annotations[_DEAD_LETTER_SOURCE] = values.string(source)
        self.annotations.setdefault(_FIRST_NUMBER, values.long(self.sequence_number))
        said = {_REASON: reason, _DESCRIPTION: description}
        self.merge({key: values.string(text) for key, text in said.items() if text is not None})
        self.annotations.pop(_SCHEDULED, None)
        self.state, self.expires = State.ACTIVE, None


def unbatch(raw: bytes) -> list[bytes]:
    """The encoded messages inside a batch envelope."""
    found: list[bytes] = []
    for code, _, value in _sections(raw):
        if code == DATA:
            found.append(values.binary_of(value))
    return found


def _section_start(code: int) -> bytes:
    return bytes((values.DESCRIBED, values.SMALL_ULONG, code))


def _sections(raw: bytes) -> list[tuple[int, bytes, bytes]]:
    """Each section's code, the whole section, and its value alone."""
    found: list[tuple[int, bytes, bytes]] = []
    start = 0
    while start < len(raw):
        if raw[start] != values.DESCRIBED:
            raise ValueError("a message section starts with a descriptor")
        value = values.end_of(raw, start + 1)
        end = values.end_of(raw, value)
        descriptor = raw[start + 1 : value]
        code = values.integer(descriptor) if descriptor[0] in values.INTEGERS else 0
        if end > len(raw):
            raise ValueError("a message section is cut short")
        found.append((code, raw[start:end], raw[value:end]))
        start = end
    return found
