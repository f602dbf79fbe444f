"""Requests: messages on the internal queue that ask any replica to run one fire time.

A request is a hint, never the truth: the job's row knows what is unfinished. It may be lost, doubled or late,
so it lives only as long as the recovery tick waits before it asks again, and a stopped consumer finds at most
one for each unfinished fire time.
"""

from __future__ import annotations

import json
import logging
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from runonce.errors import InputError, StoreError
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from runonce.stores.protocols import QueueItem, QueueStore

log = logging.getLogger("runonce.runs.requests")

UNKNOWN_AGAIN, MOST_UNKNOWN = timedelta(seconds=2), 60
"""When a request for a job that the host does not know comes again, and how often: about for as long as one lives."""
HELD_AGAIN, MOST_HELD = timedelta(seconds=2), 31
"""When a request that found the lease held comes again, and how often: for longer than a lease goes on unrenewed."""
LONGEST_EARLY = timedelta(minutes=5)
"""A request that is not due yet comes again by then at the latest; clocks are apart by more only by mistake."""
LONGEST_DELAY = 7 * 86_400
"""Seconds a message can be hidden (Azure's limit)."""
ASK_AGAIN = timedelta(minutes=2)
"""How long a request lives, and how long the recovery tick waits before it asks for the same again."""


@dataclass(frozen=True, slots=True)
class Request:
    """One fire time of a job that somebody should run now."""

    job: str
    fire_time: datetime
    why: str
    put_back: int = 0
    """How often a host that could do nothing about it has put it back."""


def send_request(
    queue: QueueStore,
    job: str,
    fire_time: datetime,
    why: str,
    *,
    delay: timedelta = timedelta(),
    put_back: int = 0,
    life: int | None = None,
) -> QueueItem:
    """Ask for a fire time, after a delay where it is not due before; of more than a week, after a week.

    `life` is how many seconds the request lives in all; by default as long as the recovery tick waits.
    """
    fields = {"job": job, "fire_time": to_text(fire_time), "why": why}
    body = json.dumps(fields | ({"put_back": put_back} if put_back else {}))
    # What comes at an instant is asked for by the next tick after it.
    shown = int(ASK_AGAIN.total_seconds()) // (2 if delay else 1)
    seconds = min(max(0, math.ceil(delay.total_seconds())), LONGEST_DELAY)
    return queue.send(body, delay=seconds, time_to_live=life or seconds + shown)


def put_back(queue: QueueStore, request: Request, delay: timedelta, *, most: int) -> bool:
    """Let a request come again, to whichever host takes it then; False when that was done `most` times already."""
    if request.put_back >= most:
        return False
    count = request.put_back + 1
    send_request(queue, request.job, request.fire_time, request.why, delay=delay, put_back=count)
    return True


def ask(queue: QueueStore, job: str, fire_time: datetime, why: str, delay: timedelta = timedelta()) -> None:
    """Ask for a fire time that a recovery tick asks for all the same, should the queue not answer."""
    try:
        send_request(queue, job, fire_time, why, delay=delay)
    except StoreError as error:
        log.warning("job %s: the next recovery tick asks for %s: %s", job, fire_time, error)


def put_back_held(queue: QueueStore, request: Request, delay: timedelta) -> None:
    """Let a request come again that found its job's lease held, or its retry not due."""
    put_back(queue, request, delay, most=MOST_HELD)


def put_back_early(queue: QueueStore, request: Request, early: timedelta) -> None:
    """Let a request come again when its fire time is due."""
    log.warning("A request asks for %s at %s, not due yet; put back.", request.job, request.fire_time)
    delay = min(early, LONGEST_EARLY)
    send_request(queue, request.job, request.fire_time, request.why, delay=delay)


def put_back_unknown(queue: QueueStore, request: Request) -> None:
    """Let a request for a job that this host does not know come to others, which may be of a newer version."""
    kept = put_back(queue, request, UNKNOWN_AGAIN, most=MOST_UNKNOWN)
    if request.put_back == 0 or not kept:
        log.log(
            logging.WARNING if kept else logging.ERROR,
            "A request asks for job %r, which this host does not have: deploy the file that defines it. Its fire time "
            "%s stays due%s.",
            request.job,
            request.fire_time,
            ", and other hosts are asked" if kept else "",
        )


def read_request(body: str) -> Request:
    """The request in a message.

    Raises:
        InputError: It is not one; the message names what is wrong.
    """
    try:
        fields = json.loads(body)
        told = fields["fire_time"]
        fire_time = datetime.fromisoformat(told) if told else None
        job, why, put_back = fields["job"], fields.get("why", ""), int(fields.get("put_back", 0))
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
    return Request(job, fire_time, str(why), put_back)
