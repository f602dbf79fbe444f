"""What a function is that is called once for each key: its definition, and the call that is under way. No I/O."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from runonce.errors import DefinitionError, InputError
from runonce.execution.options import OnAbandoned, checked_body, checked_choice, checked_name, checked_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.messages.claim import MessageClaim

Busy = Literal["wait", "refuse"]
Key = str | Callable[..., object]
Counts = str | Sequence[str] | None
ALL = "*"

_places: dict[str, str] = {}
"""By each name the function that has it: two would share their keys."""


@dataclass(frozen=True, slots=True)
class Once:
    """A function whose calls are claimed by key, beside the claims of messages and in the same way."""

    name: str
    retention: float
    """Seconds a call's record is kept, after it began or after it was done."""
    busy: Busy
    key: Key
    """The name of an argument, or a function of the call's arguments."""
    fingerprint: Counts
    signature: inspect.Signature

    entity: ClassVar[str] = "once"
    on_abandoned: ClassVar[OnAbandoned] = "rerun"

    def about(self, key: str) -> str:
        """What an error about one of its calls begins with."""
        return f"{self.name}, key {key!r:.80}"


def define(
    body: Callable[..., Any],
    decorator: str,
    *,
    name: str | None,
    retention: float | timedelta,
    busy: Busy,
    key: Key,
    fingerprint: Counts,
) -> Once:
    """The definition; DefinitionError where an argument cannot work."""
    checked_body(decorator, body)
    job = checked_name(name if name is not None else body.__name__)
    checked_choice(job, "busy", busy, get_args(Busy))
    signature = inspect.signature(body)
    if not callable(key) and key not in signature.parameters:
        raise _no_argument(job, "key", key, signature)
    if callable(key) and inspect.iscoroutinefunction(key):
        raise DefinitionError(f"Job {job!r}: key={key.__name__} is an async function; make it a plain def.")
    counted = fingerprint
    if counted is not None and counted != ALL:
        counted = (counted,) if isinstance(counted, str) else tuple(counted)
        for one in counted:
            if one not in signature.parameters:
                raise _no_argument(job, "fingerprint", one, signature)
    place = f"{body.__module__}.{body.__qualname__}"
    if "<locals>" not in place and _places.setdefault(job, place) != place:
        raise DefinitionError(
            f"Job {job!r}: {_places[job]} has that name already, and {place} would share its keys and results; give "
            f'one of them another with name="…".'
        )
    kept = checked_seconds(job, "retention", retention, most=timedelta(days=3650))
    return Once(job, kept, busy, key, counted, signature)


def _no_argument(job: str, option: str, value: object, signature: inspect.Signature) -> DefinitionError:
    known = ", ".join(signature.parameters) or "none"
    return DefinitionError(
        f"Job {job!r}: {option}={value!r} is no argument of its function, which are: {known}; name one of them"
        + (", or give a function of them." if option == "key" else '; "*" is all of them, None is none.')
    )


class Call:
    """One call of such a function, as it is claimed now."""

    def __init__(self, once: Once, claim: MessageClaim) -> None:
        self._claim = claim
        self.name = once.name
        self.key = claim.row.key
        self.attempt = claim.row.attempt
        """1 is the first; a later one follows a call that raised, or whose process died."""
        self.idempotency_key = claim.row.idempotency_key
        """The same in every attempt; pass it to the service that the function calls."""
        self.fencing_token = claim.row.token
        """Rises with every attempt."""

    def check(self) -> None:
        """Return if the call's claim is held.

        Raises:
            LeaseLost: It is not: another caller may be at work on it, so do nothing more.
        """
        self._claim.check()

    @staticmethod
    def current() -> Call:
        """The call that this code runs in.

        Raises:
            InputError: It runs in none.
        """
        call = _current.get()
        if call is None:
            raise InputError("Call.current() is for the code of a function under @once, while it is called.")
        return call


_current: ContextVar[Call | None] = ContextVar("runonce_call", default=None)


@contextmanager
def during(call: Call) -> Iterator[None]:
    """While the function runs."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


def check_not_within(once: Once, key: str) -> None:
    """InputError where that very call is under way here: it would wait for itself."""
    call = _current.get()
    if call is not None and (call.name, call.key) == (once.name, key):
        raise InputError(f"{once.about(key)}: it calls itself with the same key, and would wait for itself.")
