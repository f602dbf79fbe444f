"""Which of a topic's messages a subscription gets: a SQL filter, a correlation filter, or everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servicebus import sql, values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from servicebus.message import Message

_SYSTEM = {
    "messageid": 0, "to": 2, "label": 3, "replyto": 4, "correlationid": 5, "contenttype": 6, "sessionid": 10,
    "replytosessionid": 12,
}  # fmt: skip
"""Names in lower case, and their places in AMQP's properties."""
_SUBJECT = "subject"  # what newer clients call the label; only correlation filters know it by that name


def compiled(declared: str | Mapping[str, Any]) -> Callable[[Message], bool]:
    """Whether a message passes the filter; ValueError, naming what is wrong, when it is none."""
    if not declared:
        return lambda _: True
    if not isinstance(declared, str):
        return _correlation(declared)
    wanted = sql.parse(declared, frozenset(_SYSTEM))
    return lambda message: wanted(_properties(message)) is True


def _properties(message: Message) -> dict[str, Any]:
    """Values by `sys.name` and `user.name`, in lower case; what the sender left out is left out."""
    found = {f"user.{key.lower()}": value for key, value in message.application_properties().items()}
    fields = message.property_fields()
    for name, place in _SYSTEM.items():
        if place < len(fields) and fields[place] != values.NULL:
            found[f"sys.{name}"] = values.decode(fields[place])
    return found


def _correlation(declared: Mapping[str, Any]) -> Callable[[Message], bool]:
    """Every named property is equal; names as in Azure's templates (`correlationId`) or in Python's client."""
    wanted: dict[str, Any] = {}
    for key, value in declared.items():
        name = key.replace("_", "").lower()
        if name == "properties" and isinstance(value, dict):
            wanted |= {f"user.{each.lower()}": expected for each, expected in value.items()}
        elif name in _SYSTEM or name == _SUBJECT:
            wanted[f"sys.{'label' if name == _SUBJECT else name}"] = value
        else:
            there_are = ", ".join([*_SYSTEM, _SUBJECT, "properties"])
            raise ValueError(
                f"correlation filter {dict(declared)}: no property {key!r}; there are {there_are}"
            )
    return lambda message: _all_equal(wanted, _properties(message))


def _all_equal(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    return all(sql.equal(found.get(name), value) is True for name, value in wanted.items())
