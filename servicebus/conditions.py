"""AMQP errors in the shape the SDK can read."""

from __future__ import annotations

import uuid

import proton


def condition(name: str, text: str) -> proton.Condition:
    """An error with all three fields.

    Proton leaves trailing empty fields out, and the SDK indexes the third one unchecked: without it, a
    refused send waits for good and a closed connection raises IndexError in the client.
    """
    tracking = {proton.symbol("com.microsoft:tracking-id"): str(uuid.uuid4())}
    return proton.Condition(name, text, tracking)
