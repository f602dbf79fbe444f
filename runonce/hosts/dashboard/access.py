"""Who may look at the dashboard and who may act, and that a form was sent by the dashboard itself.

Reading and acting are separate rights. On our own host everybody on this machine has both. On Azure Functions a request
comes with a function key, or is signed in by Easy Auth (App Service authentication), which says the person's roles,
`runonce.read` and `runonce.act`. Nobody acts unless RUNONCE_DASHBOARD says "act".
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, parse_qs, urlsplit

from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

COOKIE = "runonce-form"
FIELD = "form"
LONGEST_FORM = 64 * 1024
READ, ACT = "runonce.read", "runonce.act"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Who:
    """Whom a request is of."""

    name: str
    """As it stands on the trail."""
    may_act: bool


class Access(Protocol):
    """A host's way to tell whom a request is of."""

    def who(self, request: Request) -> Who:
        """Raises HTTPException: 401, 403 or 421 with a sentence."""
        ...


@dataclass(frozen=True, slots=True)
class Loopback:
    """Our own host: whoever is at this machine. Names that only lead here (DNS rebinding) are refused."""

    user: str
    may_act: bool

    def who(self, request: Request) -> Who:
        host = request.headers.get("host", "")
        if _address(f"//{host}").hostname not in LOOPBACK:
            raise HTTPException(421, f"This page is for http://127.0.0.1, not for {host}.")
        return Who(self.user, self.may_act)


@dataclass(frozen=True, slots=True)
class Key:
    """Azure Functions without Easy Auth: the host has checked the function key."""

    may_act: bool

    def who(self, request: Request) -> Who:  # noqa: ARG002 - all who have the key are alike
        return Who("a holder of the function key", self.may_act)


@dataclass(frozen=True, slots=True)
class EasyAuth:
    """Azure Functions behind App Service authentication, which sets the header and takes it off what comes in."""

    may_act: bool

    def who(self, request: Request) -> Who:
        name, roles = principal(request.headers.get("x-ms-client-principal", ""))
        if not roles & {READ, ACT}:
            raise HTTPException(
                403, f"{name} has neither the role {READ} nor {ACT} of this app's registration."
            )
        return Who(name, self.may_act and ACT in roles)


def principal(header: str) -> tuple[str, set[str]]:
    """Name and roles of the person that Easy Auth has signed in.

    https://learn.microsoft.com/azure/app-service/configure-authentication-user-identities

    Raises:
        HTTPException: Nobody is signed in (401).
    """
    try:
        said: Mapping[str, Any] = json.loads(base64.b64decode(header, validate=True))
        claims = [(str(claim["typ"]), str(claim["val"])) for claim in said["claims"]]
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        raise HTTPException(401, "Sign in first.") from None
    of_name, of_role = str(said.get("name_typ") or "name"), str(said.get("role_typ") or "roles")
    name = next(
        (value for kind, value in claims if kind in (of_name, "preferred_username")), "somebody signed in"
    )
    return name, {value for kind, value in claims if kind in (of_role, "roles")}


def _address(text: str) -> SplitResult:
    """The parts of an address; none of one that is none, such as http://[."""
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")


def form_token(request: Request) -> str:
    """What the page's forms have in a hidden field and the browser in a cookie: no other site knows both."""
    return request.cookies.get(COOKIE) or secrets.token_urlsafe(24)


def keep_token(request: Request, response: Response, token: str) -> None:
    """Give the browser the cookie."""
    if request.cookies.get(COOKIE) != token:
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure)


async def read_form(request: Request, who: Who) -> dict[str, str]:
    """The fields of a form of the dashboard's own; a field that comes several times has its last value.

    Raises:
        HTTPException: The form is another site's, or the person may not act (403), or it is too long (413).
    """
    if not who.may_act:
        raise HTTPException(403, f"{who.name} may look, and not act.")
    origin = request.headers.get("origin")
    if origin is not None and _address(origin).netloc != request.headers.get("host", ""):
        raise HTTPException(403, "This form was sent by another site.")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "This form was sent by another site.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_FORM:
            raise HTTPException(413, "The form is too long.")
    try:
        fields = {
            name: values[-1] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()
        }
    except ValueError:
        raise HTTPException(400, "The form is not text.") from None
    if not hmac.compare_digest(fields.pop(FIELD, "").encode(), request.cookies.get(COOKIE, "-").encode()):
        raise HTTPException(
            403, "The form is out of date, or another site's: go back, load the page and send it again."
        )
    return {name: value.strip() for name, value in fields.items()}
