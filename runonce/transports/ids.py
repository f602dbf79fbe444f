"""Ids of messages: hashes, and suffixes within the broker's limit."""

from __future__ import annotations

import hashlib
import re


def digest(*parts: str) -> str:
    """A hash over length-prefixed parts, so that ("a", "bc") and ("ab", "c") differ."""
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()


LONGEST_ID = 128
"""Characters in a Service Bus MessageId (its own limit)."""


def copy_id(message_id: str, times: int) -> str:
    """The id of a message's next copy. It must differ: duplicate detection drops a copy that reuses one."""
    if times > 1:  # then it is the id of a copy
        message_id = re.sub(r"~r\d+$", "", message_id)
    return suffixed(message_id, f"~r{times}")


def suffixed(message_id: str, suffix: str) -> str:
    """An id with something after it, within the broker's limit; two ids never become the same one."""
    room = LONGEST_ID - len(suffix)
    if (
        len(message_id) > room
    ):  # cut off, ids that differ at their end would be one, and the broker drop a message
        hashed = digest(message_id)
        message_id = message_id[: room - len(hashed) - 1] + "~" + hashed
    return message_id + suffix
