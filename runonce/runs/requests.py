"""Requests: messages on the internal queue that ask any replica to run one fire time.

A request is a hint, never the truth: the job's row knows what is unfinished. It may be lost, doubled or late,
so it lives only as long as the recovery tick waits before it asks again, and a stopped consumer finds at most
one for each unfinished fire time.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from runonce.errors import InputError
from runonce.stores.columns import from_text, to_text

if TYPE_CHECKING:
    from runonce.stores.protocols import QueueStore

ASK_AGAIN = timedelta(minutes=2)
"""How long a request lives, and how long the recovery tick waits before it asks for the same again."""


@dataclass(frozen=True, slots=True)
class Request:
    """One fire time of a job that somebody should run now."""

    job: str
    fire_time: datetime
    why: str


def send_request(
    queue: QueueStore, job: str, fire_time: datetime, why: str, *, delay: timedelta = timedelta()
) -> None:
    """Ask for a fire time, after a delay where it is not due before."""
    body = json.dumps({"job": job, "fire_time": to_text(fire_time), "why": why})
    seconds = math.ceil(delay.total_seconds())
    queue.send(body, delay=seconds, time_to_live=int(ASK_AGAIN.total_seconds()) + seconds)


def read_request(body: str) -> Request:
    """The request in a message.

    Raises:
        InputError: It is not one; the message names what is wrong.
    """
    try:
        fields = json.loads(body)
        fire_time = from_text(fields["fire_time"])
        job, why = fields["job"], fields.get("why", "")
        if fire_time is not None and fire_time.tzinfo is not None:
            fire_time = fire_time.astimezone(UTC)  # whoever sent it by hand may have used another zone
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"A message on the internal queue is not a request ({type(error).__name__}: {error}): {body[:200]!r}. It "
            f'is dropped; a request is {{"job": "…", "fire_time": "2026-11-29T03:00:00Z"}}.'
        ) from error
    is_name = isinstance(job, str) and not re.search(r"\s", job)
    if not is_name or fire_time is None or fire_time.tzinfo is None or fire_time.microsecond:
        raise InputError(
            f"A message on the internal queue names job {job!r:.80} and fire time {fields['fire_time']!r:.80}: give a "
            f"job's name and an instant on a whole second with its offset, such as 2026-11-29T03:00:00Z. It is dropped."
        )
    return Request(job, fire_time, str(why))
