"""Calls of functions with a key, each with one effect: claimed as messages are, and its result kept on the claim's row.

What is to be done is said step by step, so that a sync and an async function have the same: a `Call` is to be run, a
number is seconds to wait.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from runonce.errors import (
    Fenced,
    InProgressError,
    InputError,
    KeyReusedError,
    LeaseLost,
    NotKeptError,
    PermanentError,
    StoreError,
)
from runonce.execution.body import brief, to_its_end, told
from runonce.execution.options import MAX_ABANDONED
from runonce.execution.stop import StopSignal
from runonce.execution.terms import WAITING
from runonce.execution.threads import in_thread
from runonce.messages.claim import Delivered, MessageClaim, Settled, claim_message
from runonce.messages.heartbeat import Heartbeats
from runonce.messages.once import ALL, Call, check_not_within, during
from runonce.messages.reading import key_text
from runonce.messages.rows import of_calls
from runonce.stores.columns import column_problem, shortened, strict
from runonce.transports.ids import canonical, fingerprint
from runonce.transports.settlement import Complete, DeadLetter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from runonce.clock import Clock
    from runonce.execution.registry import Registry
    from runonce.messages.once import Once

log = logging.getLogger("runonce.once")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between looks at a call that another caller has begun; each pause is half as long again as the last."""

End = tuple[Any, BaseException | None]


class Ended(NamedTuple):
    """How a call ended, here or earlier: its result as it is kept, or what is to be raised."""

    result: str
    error: BaseException | None = None


def read(once: Once, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, str]:
    """The key and the fingerprint of a call.

    Raises:
        InputError: There is none, or no one can tell.
        TypeError: The function does not take these arguments.
    """
    bound = once.signature.bind(*arguments, **named)
    bound.apply_defaults()
    given = bound.arguments
    value = once.key(*arguments, **named) if callable(once.key) else given[once.key]
    key = key_text(value, "its key is empty", lambda _, what: InputError(f"{once.name}: {what}."))
    if once.fingerprint is None:
        return key, ""
    counted = list(given) if once.fingerprint == ALL else once.fingerprint
    for name in counted:
        try:
            canonical(given[name])
        except (TypeError, ValueError, RecursionError):
            raise InputError(
                f"{once.about(key)}: its argument {name!r} is a {type(given[name]).__name__}, which is no JSON value, "
                f"so nobody can tell whether another call of that key has the same; say which arguments count: "
                f'fingerprint=("{once.key if isinstance(once.key, str) else "id"}", …), or None for none.'
            ) from None
    return key, fingerprint(canonical([[name, given[name]] for name in counted]).encode())


def as_json(once: Once, key: str, result: object) -> str:
    """A result as it is kept.

    Raises:
        NotKeptError: It cannot be.
    """
    try:
        text = strict(result)
    except (TypeError, ValueError, RecursionError) as error:
        if inspect.iscoroutine(result):
            result.close()
        raise NotKeptError(
            f"{once.about(key)}: it ran, but its result is no JSON value ({error}), so no other caller could get it; "
            f"return text, numbers, booleans, None, lists and dicts of them. It is not run again under that key."
        ) from None
    problem = column_problem("returned", text)
    if problem is not None:
        raise NotKeptError(
            f"{once.about(key)}: it ran, but its result cannot be kept: {problem}. It is not run again under that key."
        )
    return text


class Calls:
    """Claims calls for one process; safe to use from many threads.

    Args:
        claims: Where the claims of messages are.
        lease: Seconds without a sign of life after which a call is another caller's.
    """

    def __init__(self, claims: Registry, lease: int) -> None:
        self.registry = of_calls(claims)
        self._lease = lease
        self._heartbeats = Heartbeats(claims.clock)

    def steps(
        self,
        once: Once,
        key: str,
        told_apart: str,
        keep: Callable[[Once, str, Any], str] = as_json,
    ) -> Generator[Call | float, End | None, Ended]:
        """What is to be done for one call, until it has ended here or elsewhere; `keep` makes text of its result.

        Raises:
            InProgressError: Another caller is at work on it, with busy="refuse".
            KeyReusedError: The key came before with another fingerprint.
            PermanentError: It failed for good before.
            StoreUnavailableError: The table did not answer; nothing has run.
        """
        check_not_within(once, key)
        delivered = Delivered(key, key, told_apart, redelivered=False, reschedules=0)
        pause = FIRST_PAUSE
        while True:
            expires_at = self.registry.clock.now() + timedelta(seconds=once.retention)
            delivered = replace(delivered, expires_at=expires_at)
            claimed = claim_message(self.registry, once, delivered, self._lease)
            if isinstance(claimed, MessageClaim):
                ended = yield from self._run(once, claimed, keep)
                if ended is not None:
                    return ended
            elif (answer := _answer(once, key, claimed)) is not None:
                return answer
            elif once.busy == "refuse":
                raise InProgressError(
                    f"{once.about(key)}: another call of that key is at work; try again when it has ended."
                )
            delivered = replace(delivered, redelivered=True)
            yield pause
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _run(
        self, once: Once, claim: MessageClaim, keep: Callable[[Once, str, Any], str]
    ) -> Generator[Call | float, End | None, Ended | None]:
        """How it ended; None where another caller has taken it over."""
        # The stop signal is for the heartbeat: the function is its caller's, and asks `Call.check` if it wants to know.
        self._heartbeats.watch(claim, StopSignal(), lambda: WAITING, lambda: None)
        try:
            if not claim.held:  # this process was paused, or the table slow: somebody else may have begun
                return None
            result, error = (yield Call(once, claim)) or (None, None)
            if isinstance(error, LeaseLost):
                return None
            return self._finish(once, claim, keep, result, error)
        finally:
            claim.let_go()

    def _finish(
        self,
        once: Once,
        claim: MessageClaim,
        keep: Callable[[Once, str, Any], str],
        result: Any,
        error: BaseException | None,
    ) -> Ended | None:
        text = ""
        if error is None:
            try:
                text = keep(once, claim.row.key, result)
            except PermanentError as bad:
                error = bad
        try:
            if error is None:
                claim.done(returned=text)
            elif isinstance(error, PermanentError):
                claim.fail(shortened(brief(error)), told(error))
            else:
                claim.release(None, shortened(brief(error)), failed=True, error=told(error))
        except (LeaseLost, Fenced) as lost:
            log.warning("%s: another caller has taken it over: %s", claim.who, lost)
            return None if error is None else Ended("", error)
        except StoreError as trouble:
            log.error("%s: how it ended could not be recorded: %s", claim.who, trouble)  # noqa: TRY400 - its text is all
            return Ended("", trouble if error is None else error)
        return Ended(text, error)


def _answer(once: Once, key: str, settled: Settled) -> Ended | None:
    """What a call gets that does not run; None while another caller is at work."""
    settlement, row = settled.settlement, settled.row
    if row is None or not isinstance(settlement, Complete | DeadLetter):
        return None
    if isinstance(settlement, Complete):
        return Ended(row.returned)
    if settlement.reason == "KeyReused":
        return Ended(
            "",
            KeyReusedError(
                f"{once.about(key)}: that key came before with other arguments. One key means one call: give another "
                f"call a key of its own."
            ),
        )
    why = f"it failed for good before: {row.reason}"
    if row.abandoned - row.survived >= MAX_ABANDONED:
        why = (
            f"its process died in {row.abandoned} attempts, and the call may be what kills it; correct the function, "
            f"and call it with another key."
        )
    return Ended("", PermanentError(f"{once.about(key)}: {why}"))


def run(steps: Generator[Call | float, End | None, Ended], call: Callable[[], Any], clock: Clock) -> str:
    """Go through the steps with a sync function, in this thread; its result as it is kept."""
    end: End | None = None
    never = threading.Event()
    while True:
        step = _next(steps, end)
        end = None
        if isinstance(step, Ended):
            return _given(step)
        if isinstance(step, Call):
            with during(step):
                try:
                    end = call(), None
                except BaseException as error:  # noqa: BLE001 - raised again when it is recorded
                    end = None, error
        else:
            clock.wait(never, step)


async def run_async(
    steps: Generator[Call | float, End | None, Ended], call: Callable[[], Awaitable[Any]]
) -> str:
    """The same with an async function, which is awaited here; each step takes a thread of its own."""
    end: End | None = None
    while True:
        step, cancelled = await to_its_end(in_thread(partial(_next, steps, end)))
        end = None
        if isinstance(step, Call) and cancelled:
            end = None, asyncio.CancelledError()
        elif cancelled:
            steps.close()
            raise asyncio.CancelledError
        elif isinstance(step, Ended):
            return _given(step)
        elif isinstance(step, Call):
            with during(step):
                try:
                    end = await call(), None
                except BaseException as error:  # noqa: BLE001 - raised again when it is recorded
                    end = None, error
        else:
            await asyncio.sleep(step)


def _next(steps: Generator[Call | float, End | None, Ended], end: End | None) -> Call | float | Ended:
    try:
        return steps.send(end)
    except StopIteration as over:  # which no future takes
        ended: Ended = over.value
        return ended


def _given(ended: Ended) -> str:
    if ended.error is not None:
        raise ended.error
    return ended.result
