"""Storage that does one thing wrong, in front of a real Azurite: what the suite must notice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from runonce.testing.proxy import Proxy

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

CONFLICT, CREATED = 409, 201
Reply = tuple[int, list[tuple[str, str]], bytes]


class IgnoresConditions(Proxy):
    """Takes every conditional write of a row, whatever its ETag."""

    def forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> Reply:
        # A blob's signature holds its condition, so blobs are left as they are.
        if handler.headers.get("If-Match") and "x-ms-blob-type" not in handler.headers:
            handler.headers.replace_header("If-Match", "*")
        return super().forward(handler, re.sub(rb"(?mi)^(If-Match: )[^\r]*", rb"\1*", body))


class GrantsTwice(Proxy):
    """Grants a lease that somebody else holds."""

    def forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> Reply:
        status, headers, data = super().forward(handler, body)
        if handler.headers.get("x-ms-lease-action") == "acquire" and status == CONFLICT:
            granted = ("x-ms-lease-id", handler.headers["x-ms-proposed-lease-id"])
            return CREATED, [granted, *((n, v) for n, v in headers if n.lower() != "x-ms-error-code")], b""
        return status, headers, data
