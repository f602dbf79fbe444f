"""Acts on many dead letters of a handler: on those that are named, or on all there are."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runonce.errors import StoreError, TransportError
from runonce.messages.dead_letters import may_have_happened, replay
from runonce.transports.ids import root

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.execution.registry import Registry
    from runonce.messages.definition import Handler
    from runonce.transports.protocols import Dead, DeadLetters, Sender

AT_ONCE = 32
LOOKED_AT_ONCE = 500


@dataclass
class Worked:
    """What became of the dead letters that were wanted, by their ids."""

    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Why, by id."""
    left_out: list[str] = field(default_factory=list)


class LeftOut(Exception):  # noqa: N818 - no error
    """This one is only done when it is named."""


def id_of(dead: Dead) -> str:
    """The id a dead letter is known by: its message's first one."""
    return dead.delivery.sent_as or dead.delivery.message_id


def is_called(dead: Dead, name: str) -> bool:
    """Whether a person who gives that id means this one."""
    return name in (id_of(dead), dead.delivery.message_id)


def work(letters: DeadLetters, wanted: set[str] | None, act: Callable[[Dead], str]) -> Worked:
    """Act on each that is wanted (None: on all there are), and leave the others where they were.

    A replayed message can come back as a dead letter while this goes on; `act` says under which id it was sent,
    and that one is left.
    """
    worked, seen, sent = Worked(), set[str](), set[str]()
    left: list[Dead] = []
    try:
        while True:
            # Those that are not wanted are held until the end, so they are gone through in large steps.
            taken = letters.take(AT_ONCE if wanted is None else LOOKED_AT_ONCE)
            if all(dead.place in seen for dead in taken):
                left += taken
                break
            for dead in taken:
                if dead.place in seen or not _is_wanted(dead, wanted, sent):
                    left.append(dead)
                    continue
                try:
                    sent.add(act(dead))
                except LeftOut:
                    worked.left_out.append(id_of(dead))
                    left.append(dead)
                except (StoreError, TransportError) as error:  # one that cannot be sent keeps no other back
                    worked.refused[id_of(dead)] = str(error)
                    left.append(dead)
                else:
                    worked.done.append(id_of(dead))
            seen |= {dead.place for dead in taken}
    finally:
        for dead in left:
            with contextlib.suppress(TransportError):  # held for too long, it is back by itself
                letters.put_back(dead)
    return worked


def replay_wanted(
    claims: Registry,
    sender: Sender,
    handler: Handler,
    letters: DeadLetters,
    wanted: set[str] | None,
    *,
    from_scratch: bool = False,
) -> Worked:
    """Send dead letters through again; without names those are left out whose effect may have happened already."""

    def act(dead: Dead) -> str:
        if wanted is None and may_have_happened(claims, handler, dead):
            raise LeftOut
        return replay(claims, sender, handler, letters, dead, from_scratch=from_scratch)

    return work(letters, wanted, act)


def _is_wanted(dead: Dead, wanted: set[str] | None, sent: set[str]) -> bool:
    if root(dead.delivery.message_id) in sent - {""}:
        return False  # this call sent it, and it is here again
    return wanted is None or any(is_called(dead, name) for name in wanted)
