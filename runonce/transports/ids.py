"""Ids of messages: every id the toolkit makes is made here, of all that tells two messages apart.

A broker that detects duplicates drops a message whose id it has seen, so an id that two messages could share loses one
of them. What two messages can differ in (who receives it, its handler, key, body, ordinal, generation, copy) goes
into a hash; what people recognise a message by stands before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Any

LONGEST_ID = 128
"""Characters in a Service Bus MessageId (its own limit)."""
HASH = 20
"""Hexadecimal digits of an id's hash."""
LONGEST_MADE = 96
"""Characters of an id that is no copy's: a copy's hash and suffix come after it."""
COPY = re.compile(rf"~[0-9a-f]{{{HASH}}}~r\d+\Z")


def digest(*parts: str) -> str:
    """A hash over length-prefixed parts, so that ("a", "bc") and ("ab", "c") differ."""
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprint(body: bytes) -> str:
    """What tells two bodies apart: for JSON what it says, for anything else its bytes.

    Order of fields, white space, escapes, a byte order mark and the spelling of a number (1, 1.0, 1e0: JSON has one
    kind of number) do not count.
    """
    try:
        return "json-" + digest(canonical(exact(body)))[:27]
    except (ValueError, RecursionError):
        return "body-" + hashlib.sha256(body).hexdigest()[:27]


def exact(body: bytes) -> Any:
    """What a body says in JSON, with numbers so that equal ones are equal here, and no others.

    Raises:
        ValueError, RecursionError: It is not JSON.
    """
    return json.loads(body.decode("utf-8-sig"), parse_float=_number)


def canonical(value: Any) -> str:
    """A JSON value as the one text that all its spellings have.

    Raises:
        TypeError, ValueError, RecursionError: It is no JSON value.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _number(text: str) -> int | float | dict[str, str]:
    """A number with a point or an exponent; where a float would not keep all its digits, these."""
    try:
        number, rounded = Decimal(text), float(text)
    except InvalidOperation:  # its exponent is beyond all measure
        return {"number": text}
    if number != Decimal(repr(rounded)):
        all_digits = Context(prec=len(text), Emax=MAX_EMAX, Emin=MIN_EMIN)
        return {"number": str(number.normalize(all_digits))}
    return int(number) if number == number.to_integral_value() else rounded


def sent_id(entity: str, handler: str, key: str, body: bytes) -> str:
    """The id of a message somebody sends: the same when the same message is sent again."""
    return _made(f"{entity}:{key}", "sent", entity, handler, key, fingerprint(body))


def known_id(entity: str, key: str) -> str:
    """What people know a message by, in logs and commands: its queue and key, as far as they can be shown."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "_", f"{entity}:{key}")[:LONGEST_ID]


def follow_up_id(
    entity: str, handler: str, body: bytes, *, sender: tuple[str, str, str, int], ordinal: int, key: str = ""
) -> str:
    """The id of a follow-up: the same in every attempt of its sender, which is (entity, handler, key, generation)."""
    origin = (*sender[:3], str(sender[3]), str(ordinal))
    return _made(
        key or f"{sender[1]}-{ordinal}", "follow-up", entity, handler, key, fingerprint(body), *origin
    )


def copy_id(entity: str, handler: str, message_id: str, body: bytes, times: int) -> str:
    """The id of a message's next copy. It differs from those before, which a broker would drop it for."""
    shown = (
        root(message_id) if times > 1 else message_id
    )  # a first copy's id is its sender's, whatever it ends with
    told = (message_id, _bytes(body))
    return _made(shown, "copy", entity, handler, *told, suffix=f"~r{times}", most=LONGEST_ID)


def replay_id(entity: str, handler: str, message_id: str, body: bytes, generation: int, place: str) -> str:
    """The id under which a dead letter is sent once more; `place` tells it from others of the same message."""
    told = (message_id, _bytes(body), str(generation), place)
    return _made(message_id, "replay", entity, handler, *told, suffix=f"~g{generation}")


def root(message_id: str) -> str:
    """The id of the message that a copy is one of."""
    return COPY.sub("", message_id)


def _bytes(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _made(shown: str, *parts: str, suffix: str = "", most: int = LONGEST_MADE) -> str:
    """What people read, the hash of all parts, and a suffix, within a number of characters."""
    end = f"~{digest(*parts, suffix)[:HASH]}{suffix}"
    # Ids travel through headers, logs and shells; what is not plain ASCII tells nobody anything there.
    return re.sub(r"[^!-~]", "_", shown)[: most - len(end)] + end
