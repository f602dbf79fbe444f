"""Values as the Functions host puts them on the wire."""

import base64
import datetime as dt
import decimal
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from .messages import PROTOCOL

_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_TICKS = 10_000_000
"""Of 100 ns in a second: how .NET counts time."""
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def text(value: str) -> Any:
    """A string."""
    return PROTOCOL.TypedData(string=value)


def raw(value: bytes) -> Any:
    """Bytes."""
    return PROTOCOL.TypedData(bytes=value)


def as_json(value: Any) -> Any:
    """Anything else; dates go this way too, so they arrive within quotation marks."""
    return PROTOCOL.TypedData(json=json.dumps(value))


def naive_time(moment: dt.datetime) -> Any:
    """A `DateTime` in UTC: milliseconds and no zone."""
    return as_json(_milliseconds(moment))


def zoned_time(moment: dt.datetime) -> Any:
    """A `DateTimeOffset` in UTC."""
    return as_json(_milliseconds(moment) + "+00:00")


def body_fields(body: str) -> dict[str, Any]:
    """The top-level fields of a JSON object as the host makes metadata of them; of any other body none.

    Arrays and nulls are left out, objects stay JSON, everything else becomes text the way .NET writes it: what
    looks like a date is taken for one and written in another form.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict):
        return {}
    return {
        name: as_json(value) if isinstance(value, dict) else text(_invariant(value))
        for name, value in fields.items()
        if value is not None and not isinstance(value, list)
    }


def application_properties(properties: Mapping[str, Any]) -> Any:
    """A message's properties: JSON with text for whatever JSON has no type for."""
    return as_json({name: _property(value) for name, value in properties.items()})


def _invariant(value: str | bool | float) -> str:
    if isinstance(value, str):
        if _ISO_DATE.fullmatch(value):
            moment = dt.datetime.fromisoformat(value)
            moment = moment.astimezone(dt.UTC) if moment.tzinfo else moment
            return f"{moment:%m/%d/%Y %H:%M:%S}"
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)  # True and False with a capital, as .NET


def _property(value: Any) -> Any:
    sent: Any = str(value)
    match value:
        case None | bool() | str():
            sent = value
        case int():
            sent = int(value)
        case float() | decimal.Decimal():
            sent = float(value) if math.isfinite(value) else _NOT_FINITE[str(float(value))]
        case bytes():
            sent = base64.b64encode(value).decode()
        case dt.datetime():
            sent = _milliseconds(value.astimezone(dt.UTC) if value.tzinfo else value) + "Z"
        case dt.timedelta():
            sent = _time_span(value // dt.timedelta(microseconds=1) * 10)
    return sent


def _time_span(ticks: int) -> str:
    seconds, fraction = divmod(abs(ticks), _TICKS)
    days, seconds = divmod(seconds, 86_400)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return (
        ("-" if ticks < 0 else "")
        + (f"{days}." if days else "")
        + f"{hours:02}:{minutes:02}:{seconds % 60:02}"
        + (f".{fraction:07}" if fraction else "")
    )


def _milliseconds(moment: dt.datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
