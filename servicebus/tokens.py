"""Shared access signatures, checked when the broker was started with keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote_plus, urlsplit

from servicebus.timers import now

if TYPE_CHECKING:
    from collections.abc import Mapping


def valid(token: str, keys: Mapping[str, str]) -> bool:
    """Whether the token is signed by one of the keys and still runs; without keys, any token is."""
    if not keys:
        return True
    try:
        _, _, query = token.partition(" ")
        parts = {name: found[0] for name, found in parse_qs(query, strict_parsing=True).items()}
        signed = f"{quote_plus(parts['sr'])}\n{parts['se']}".encode()
        expected = base64.b64encode(hmac.new(keys[parts["skn"]].encode(), signed, hashlib.sha256).digest())
        return hmac.compare_digest(expected, parts["sig"].encode()) and int(parts["se"]) > now()
    except (KeyError, ValueError):
        return False


def scope(address: str) -> str:
    """The entity an address names: both `amqps://host/Orders` and `Orders` name `orders`; "" means all."""
    try:
        path = urlsplit(address).path if "://" in address else address
    except ValueError:  # then it names nothing
        path = address
    return path.strip("/").lower()
