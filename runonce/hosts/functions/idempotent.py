"""`@idempotent`: a function of HTTP requests that answers a repeated request with the response it gave before.

By draft-ietf-httpapi-idempotency-key-header: 400 without the key, 409 while its request is at work, 422 for a key with
another request.
"""

from __future__ import annotations

import base64
import functools
import inspect
import json
import re
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

from runonce.errors import InProgressError, InputError, KeyReusedError, NotKeptError
from runonce.messages.once import define
from runonce.transports.ids import digest, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

    import azure.functions as func

    from runonce.messages.once import Once

HEADER = "Idempotency-Key"
QUOTED = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
"""A String of structured fields (RFC 8941); the draft wants one."""
BARE = re.compile(r"[\x21\x23-\x7e]+")
"""What many clients send instead."""
ADDRESS = re.compile(r"[A-Za-z]+://[^/?]*")
"""Scheme and host of a URL; what a client says of the host need not be one."""
LONGEST = 255
"""Characters of a key."""
SPECIFICATION = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"

F = TypeVar("F", bound="Callable[..., Any]")


class _NotRecordedError(Exception):
    """The server's own failure: its client gets it, and may try again."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"answered {response.status_code}")
        self.response = response


def idempotent(
    *,
    retention: float | timedelta = timedelta(days=30),
    required: bool = True,
    client: Callable[[func.HttpRequest], str] | None = None,
    name: str | None = None,
) -> Callable[[F], F]:
    """Handle each `Idempotency-Key` of HTTP requests once, and answer its repetitions with the response recorded.

    It goes between the function and its route. A request without the key is answered with 400, one whose key is at work
    with 409, one that has the key of another request (method, path, query or body) with 422. A response of 500 or more,
    or an exception, is no end: the next request of that key runs the function again. Any other response is recorded:
    32,000 characters of it with its headers, a body that is no text in Base64.

    Args:
        retention: Seconds (or a timedelta) a response is kept, up to 3,650 days.
        required: Whether a request without the key is refused; otherwise the function handles it, each time it comes.
        client: Who sends a request, such as the subject of its token: a function of the request. Requests of different
            clients have nothing in common, whatever their keys; without it nobody can tell clients apart, and whoever
            knows another one's key and request gets its response.
        name: What the requests are filed under. Default: the function's name, which is to be lower-case.

    Raises:
        DefinitionError: An argument cannot work; the message names the function, the value and the remedy.
    """

    def decorate(body: F) -> F:
        made = define(
            body, "idempotent", name=name, retention=retention, busy="refuse", key=_no_key, fingerprint=None
        )
        guarded = _Guarded(made, body, required, client)
        whole = _async(guarded) if inspect.iscoroutinefunction(body) else _sync(guarded)
        return cast("F", functools.wraps(body)(whole))

    return decorate


@dataclass(frozen=True, slots=True)
class _Guarded:
    once: Once
    body: Callable[..., Any]
    required: bool
    client: Callable[[func.HttpRequest], str] | None

    def begin(self, request: func.HttpRequest) -> tuple[str, str] | func.HttpResponse | None:
        """The request's key and fingerprint, or the response to it; None where the function is to handle it anyway."""
        given = request.headers.get(HEADER)
        if given is None:
            return _problem(HTTPStatus.BAD_REQUEST, f"{HEADER} is missing") if self.required else None
        key = _key(given)
        if key is None:
            return _problem(HTTPStatus.BAD_REQUEST, f"{HEADER} is malformed")
        if self.client is not None:
            key = digest(self.client(request), key)
        return key, _told_apart(request)


def _sync(guarded: _Guarded) -> Callable[..., Any]:
    def handle(*arguments: Any, **named: Any) -> Any:
        from runonce.hosts.calls import calls  # noqa: PLC0415 - imports the SDKs
        from runonce.messages.calls import run  # noqa: PLC0415

        begun = guarded.begin(_request(guarded.once, arguments, named))
        if not isinstance(begun, tuple):
            return begun or guarded.body(*arguments, **named)
        ran: list[bool] = []

        def call() -> Any:
            ran.append(True)
            return _ended(guarded.body(*arguments, **named))

        mine = calls()
        steps = mine.steps(guarded.once, *begun, keep=_recorded)
        try:
            return _response(run(steps, call, mine.registry.clock))
        except Exception as error:  # noqa: BLE001 - what is none of ours is raised again
            return _answer(error, ran)

    return handle


def _async(guarded: _Guarded) -> Callable[..., Any]:
    async def handle(*arguments: Any, **named: Any) -> Any:
        from runonce.hosts.calls import calls  # noqa: PLC0415 - as above
        from runonce.messages.calls import run_async  # noqa: PLC0415

        begun = guarded.begin(_request(guarded.once, arguments, named))
        if not isinstance(begun, tuple):
            return begun or await guarded.body(*arguments, **named)
        ran: list[bool] = []

        async def call() -> Any:
            ran.append(True)
            return _ended(await guarded.body(*arguments, **named))

        steps = calls().steps(guarded.once, *begun, keep=_recorded)
        try:
            return _response(await run_async(steps, call))
        except Exception as error:  # noqa: BLE001 - as above
            return _answer(error, ran)

    return handle


def _no_key(*_: object, **__: object) -> str:
    return ""  # the header has it


def _request(made: Once, arguments: tuple[Any, ...], named: dict[str, Any]) -> func.HttpRequest:
    import azure.functions as func  # noqa: PLC0415 - an extra

    for given in (*arguments, *named.values()):
        if isinstance(given, func.HttpRequest):
            return given
    raise InputError(
        f"{made.name}: @idempotent is for a function of an azure.functions.HttpRequest, and it got none."
    )


def _key(given: str) -> str | None:
    """The key in a header; None where it is none."""
    text = given.strip()
    quoted = QUOTED.fullmatch(text)
    key = text if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])
    whole = quoted is not None or BARE.fullmatch(text)
    return key if whole and key.strip() and len(key) <= LONGEST else None


def _told_apart(request: func.HttpRequest) -> str:
    """What tells it from another request of the same key. Not its host, for an app has several names."""
    path, _, query = ADDRESS.sub("", request.url, count=1).partition("?")
    return "http-" + digest(request.method, path, query, fingerprint(request.get_body()))[:27]


def _ended(response: Any) -> Any:
    if getattr(response, "status_code", 0) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise _NotRecordedError(response)
    return response


def _recorded(once: Once, key: str, response: object) -> str:
    """A response as it is kept."""
    import azure.functions as func  # noqa: PLC0415 - as above

    from runonce.messages.calls import as_json  # noqa: PLC0415 - as above

    if isinstance(response, str):
        response = func.HttpResponse(response)
    if not isinstance(response, func.HttpResponse):
        raise NotKeptError(
            f"{once.about(key)}: it ran, but gave a {type(response).__name__}; return an HttpResponse. It is not run "
            f"again under that key."
        )
    body = response.get_body()
    try:
        kept = {"text": body.decode()}
    except UnicodeDecodeError:
        kept = {"base64": base64.b64encode(body).decode()}
    record = {
        "status": response.status_code,
        "headers": list(response.headers.items()),
        "mimetype": response.mimetype,
        "charset": response.charset,
        **kept,
    }
    return as_json(once, key, record)


def _response(record: str) -> func.HttpResponse:
    import azure.functions as func  # noqa: PLC0415 - as above

    kept = json.loads(record)
    body = base64.b64decode(kept["base64"]) if "base64" in kept else kept["text"].encode()
    how = {key: kept[key] for key in ("mimetype", "charset")}
    response = func.HttpResponse(body, status_code=kept["status"], **how)
    for header, value in kept["headers"]:  # not as a mapping: one may come twice
        response.headers.add_header(header, value)
    return response


def _answer(error: Exception, ran: list[bool]) -> func.HttpResponse:
    """The response that the draft has for it; raises it where it has none, or the function raised it."""
    match error:
        case _NotRecordedError():
            response: func.HttpResponse = error.response
            return response
        case InProgressError() if not ran:
            return _problem(HTTPStatus.CONFLICT, f"A request is outstanding for this {HEADER}")
        case KeyReusedError() if not ran:
            return _problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{HEADER} is already used")
        case _:
            raise error


def _problem(status: HTTPStatus, title: str) -> func.HttpResponse:
    """Problem details, RFC 9457."""
    import azure.functions as func  # noqa: PLC0415 - as above

    body = {"type": SPECIFICATION, "title": title, "status": status.value}
    return func.HttpResponse(json.dumps(body), status_code=status.value, mimetype="application/problem+json")
