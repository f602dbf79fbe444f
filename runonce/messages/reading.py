"""What can be told of a delivery from its body alone: key, the handler's arguments, the lock's name. No I/O.

Whatever is wrong is said without repeating what is in the body, which may be private.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from runonce.errors import PermanentError
from runonce.messages.definition import WHOLE_BODY
from runonce.messages.message import LONGEST_KEY, Message, found_at
from runonce.transports.ids import canonical, digest, exact, fingerprint
from runonce.transports.protocols import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.errors import RunonceError
    from runonce.messages.definition import Handler

HALF = "is not valid Unicode: it holds half a surrogate pair, as of an emoji cut in two"
LONGEST_BLOB_NAME = 900
"""Characters of a lock in its blob's name; a name ends at 1,024 (Azure Storage)."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message that can be handled, as far as its body tells."""

    message: Message
    arguments: list[Any]
    """What the handler's function is called with."""
    lock: str | None
    """The name of the lock's blob."""
    fingerprint: str
    """What tells its body from another one of the same key."""


def prepare(handler: Handler, delivery: Delivery, max_body: int) -> Prepared:
    """Read a delivery.

    Raises:
        PermanentError: It can never be handled as it is.
    """
    message = Message(handler, delivery)
    if delivery.unreadable:
        raise message.bad("NotData", f"its body is {delivery.unreadable}, which is neither bytes nor text")
    size = len(message.body)
    if size > max_body:
        raise message.bad("TooLarge", f"its body has {size} bytes, over {max_body}; put the data in a blob")
    message.key = read_key(handler, message)
    lock = _lock_of(handler, message)
    arguments = _arguments(handler, message)
    return Prepared(
        message, arguments, None if lock is None else lock_name(lock), body_print(handler, message)
    )


def read_key(handler: Handler, message: Message) -> str:
    """The key of a message.

    Raises:
        BadMessageError: It has none, or none that can be one.
    """
    if handler.key is None:
        value: Any = message.message_id
        where = "it has no message id"
    elif callable(handler.key):
        try:
            value = handler.key(message)
        except PermanentError:
            raise
        except BaseException as error:  # it may call sys.exit
            # Not with its text, which may repeat what is in the body.
            raise message.bad("MissingKey", f"its key function raised {type(error).__name__}") from error
        where = "its key function gave nothing"
    else:
        value = message.field(handler.key, reason="MissingKey")
        where = f"its key {handler.key!r} is empty"
    return key_text(value, where, message.bad)


def key_text(value: Any, where: str, bad: Callable[[str, str], RunonceError]) -> str:
    """A value as a key; raises what `bad` makes of why it cannot be one, `where` if it is empty."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise bad("BadKey", f"its key is of type {type(value).__name__}, not text or a whole number")
    if not value.strip():
        raise bad("MissingKey", where)
    if len(value) > LONGEST_KEY:
        raise bad("BadKey", f"its key has {len(value)} characters, over {LONGEST_KEY}")
    if not _is_unicode(value):
        raise bad("BadKey", f"its key {HALF}")
    return value


def has_key_in_body(handler: Handler, delivery: Delivery) -> bool:
    """Whether the body alone has the key, so that the message is known again under another id."""
    try:
        return read_key(handler, Message(handler, delivery)) == read_key(
            handler, Message(handler, Delivery(delivery.body, ""))
        )
    except PermanentError:
        return False


def _is_unicode(text: str) -> bool:
    """Whether it is text at all: JSON can hold half a character, which no service takes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def body_print(handler: Handler, message: Message) -> str:
    """What tells a message's body from another one of the same key, by what the handler says counts.

    Raises:
        BadMessageError: That cannot be told from this body.
    """
    counts = handler.fingerprint
    if counts is None:
        return ""
    if counts == WHOLE_BODY:
        return fingerprint(message.body)
    value: Any
    if callable(counts):
        try:
            value = canonical(counts(message))
        except PermanentError:
            raise
        except BaseException as error:  # not with its text, which may repeat what is in the body
            raise message.bad(
                "BadFingerprint",
                f"its fingerprint function raised {type(error).__name__}, or gave no JSON value",
            ) from error
    else:
        fields = [counts] if isinstance(counts, str) else counts
        _ = message.json  # which says what is wrong with a body that is not JSON
        said = exact(message.body)
        value = canonical([[path, *found_at(said, path)] for path in fields])
    return fingerprint(value.encode())


def _arguments(handler: Handler, message: Message) -> list[Any]:
    if handler.batch is not None:
        return [[message]]
    arguments: list[Any] = []
    for model in handler.arguments:
        if model is None:
            arguments.append(message)
            continue
        # From JSON, not from what Python makes of it: only there a strict model takes a date, and a number keeps its
        # digits. First it is looked whether it is JSON at all.
        validate = getattr(model, "model_validate_json", None) or model.validate_json
        _ = message.json
        try:
            arguments.append(validate(message.text))
        except BaseException as error:  # pydantic's own, or whatever a validator of the model raises
            problems = _problems(error)
            name = getattr(model, "__name__", "body of the handler's type")
            raise message.bad("InvalidBody", f"its body is not a valid {name}: {problems}") from error
    return arguments


def _problems(error: BaseException) -> str:
    """What pydantic found, by field; not the values, which may be private."""
    listing = getattr(error, "errors", None)
    if listing is None:
        return type(error).__name__
    own = ("value_error", "assertion_error")  # a validator of the model's own may say anything
    found = ((e["loc"], e["type"] if e["type"] in own else e["msg"]) for e in listing()[:5])
    return "; ".join(f"{'.'.join(map(str, loc))}: {what}" if loc else what for loc, what in found)


def lock_name(lock: str) -> str:
    """What a lock's blob is called: readable where that is a name Azure keeps as it is."""
    quoted = quote(lock, safe="")
    # "." and ".." would be another place, and a last dot may be dropped.
    return digest(lock) if len(quoted) > LONGEST_BLOB_NAME or quoted.endswith(".") else quoted


def _lock_of(handler: Handler, message: Message) -> str | None:
    """The lock with its fields filled in from the message."""
    if handler.lock is None:
        return None
    return re.sub(r"\{(.*?)\}", lambda found: _lock_field(message, found[1]), handler.lock)


def _lock_field(message: Message, path: str) -> str:
    value = message.field(path)
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        kind = "empty" if value == "" else type(value).__name__
        raise message.bad("BadLock", f"its lock's field {path!r} is {kind}, not text or a whole number")
    text = str(value)
    if len(text) > LONGEST_KEY:
        raise message.bad(
            "BadLock", f"its lock's field {path!r} has {len(text)} characters, over {LONGEST_KEY}"
        )
    if not _is_unicode(text):
        raise message.bad("BadLock", f"its lock's field {path!r} {HALF}")
    return text
