"""`@once`: calls of plain functions with a key, each once across replicas and hosts. For any program."""

from __future__ import annotations

import functools
import inspect
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from runonce.errors import InProgressError, KeyReusedError
from runonce.messages.once import ALL, Call, define

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.messages.once import Busy, Counts, Key

__all__ = ["Call", "InProgressError", "KeyReusedError", "once"]

P = ParamSpec("P")
R = TypeVar("R")


def once(
    *,
    key: Key,
    retention: float | timedelta = timedelta(days=30),
    busy: Busy = "wait",
    fingerprint: Counts = ALL,
    name: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Call a function once for each key, however many callers there are, on whichever replica and host.

    The first caller runs it, where it is called; its result is recorded, and every other caller of that key gets it.
    A call that raises is released, and the next caller tries again; one that raises `PermanentError` has failed for
    good, and so have its repetitions. A call whose process dies is taken over when its claim's lease has run out
    (RUNONCE_CLAIM_LEASE, 60 s). Inside the function `Call.current()` has the attempt and an idempotency key.

    The result is JSON, 32,000 characters at most, and every caller gets it as JSON gives it back: a tuple is a list.

    Args:
        key: The name of an argument (text or a whole number, 512 characters at most), or a function of the call's
            arguments that gives the key.
        retention: Seconds (or a timedelta) the record is kept, and so a repetition recognised; up to 3,650 days.
        busy: What a caller gets while another one is at work: "wait" for its end and get its result, or "refuse" with
            InProgressError.
        fingerprint: Which arguments must be the same under one key, by name: "*" is all of them, None is none. Each is
            a JSON value.
        name: What the calls are filed under. Default: the function's name; set it before you rename the function.

    Raises:
        DefinitionError: An argument cannot work; the message names the function, the value and the remedy.

    The decorated function raises what the function raises, and
        InputError: The call has no key, or arguments that are no JSON.
        KeyReusedError: The key came before with other arguments.
        InProgressError: Another caller is at work, with busy="refuse".
        PermanentError: It failed for good before.
        NotKeptError: It ran, and its result is no JSON or too large; an InputError and a PermanentError.
        SettingsError: A setting is missing or wrong.
        StoreUnavailableError: Storage did not answer. Before the function, nothing has run; after it, its effect is not
            recorded, and the next caller runs it again.
    """

    def decorate(body: Callable[P, R]) -> Callable[P, R]:
        made = define(
            body, "once", name=name, retention=retention, busy=busy, key=key, fingerprint=fingerprint
        )

        if inspect.iscoroutinefunction(body):

            async def call_async(*arguments: P.args, **named: P.kwargs) -> Any:
                from runonce.hosts.calls import calls  # noqa: PLC0415 - imports the SDKs
                from runonce.messages.calls import read, run_async  # noqa: PLC0415

                steps = calls().steps(made, *read(made, arguments, named))
                return json.loads(await run_async(steps, lambda: body(*arguments, **named)))

            return cast("Callable[P, R]", functools.wraps(body)(call_async))

        @functools.wraps(body)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            from runonce.hosts.calls import calls  # noqa: PLC0415 - as above
            from runonce.messages.calls import read, run  # noqa: PLC0415

            mine = calls()
            steps = mine.steps(made, *read(made, arguments, named))
            result: R = json.loads(run(steps, lambda: body(*arguments, **named), mine.registry.clock))
            return result

        return call

    return decorate
