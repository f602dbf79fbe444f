"""The dashboard's ASGI app: its routes, its errors in plain words, and the headers that every reply has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from runonce.errors import InputError, RunonceError, StoreError, TransportError, UnknownJobError
from runonce.hosts.dashboard import actions, pages, words
from runonce.hosts.dashboard.access import Access, Who, form_token, keep_token, read_form
from runonce.hosts.dashboard.pages import Asked, NotThere
from runonce.runs.status import began

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

    from runonce.hosts.runtime import Runtime

HERE = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
NOT_KEPT = {"Cache-Control": "no-store"}
STATUS = {UnknownJobError: 404, InputError: 409, StoreError: 503, TransportError: 503}

templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
templates.filters.update(
    utc=words.utc,
    local=words.local,
    ago=words.ago,
    duration=words.duration,
    began=began,
    segment=lambda text: quote(text, safe=""),
)


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of the dashboard's own pages: below where it is mounted, with the function key if the page had one."""

    base: str
    code: str

    def __call__(self, path: str, **query: str) -> str:
        """The address of a path, whose parts are quoted already."""
        asked = {name: value for name, value in query.items() if value}
        if self.code:
            asked["code"] = self.code
        return f"{self.base}{path}" + (f"{'&' if '?' in path else '?'}{urlencode(asked)}" if asked else "")


def make(runtime: Runtime, access: Access) -> Starlette:
    """The app over a process's parts, for a server that lets in whom `access` knows."""

    def get(page: pages.Page) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            who = access.who(request)
            asked = Asked(runtime, request.path_params, request.query_params)
            template, values = await run_in_threadpool(page, asked)
            return render(request, who, template, values)

        return endpoint

    def post(action: actions.Do) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            who = access.who(request)
            form = await read_form(request, who)
            path, said = await run_in_threadpool(
                action, Asked(runtime, request.path_params, request.query_params, who.name, form)
            )
            return RedirectResponse(links(request)(path, said=said), 303)

        return endpoint

    async def failed(request: Request, error: Exception) -> Response:
        status, said = _told(error)
        try:
            who = access.who(request)
        except HTTPException:
            who = Who("", may_act=False)
        return render(request, who, "error.html", {"said": said, "status": status}, status)

    routes = [Route(path, get(page)) for path, page in pages.ROUTES.items()]
    routes += [Route(path, post(action), methods=["POST"]) for path, action in actions.ROUTES.items()]
    return Starlette(
        routes=[*routes, Mount("/static", StaticFiles(directory=HERE / "static"))],
        exception_handlers={
            HTTPException: failed,
            NotThere: failed,
            RunonceError: failed,
            Exception: failed,
        },
    )


def links(request: Request) -> Links:
    """The addresses for a page."""
    return Links(request.scope.get("root_path", "").rstrip("/"), request.query_params.get("code", ""))


def render(
    request: Request, who: Who, template: str, values: Mapping[str, Any], status: int = 200
) -> Response:
    """A page, with what every page has."""
    token = form_token(request)
    text = templates.get_template(template).render(
        link=links(request),
        who=who,
        token=token,
        flash="" if template == "error.html" else request.query_params.get("said", ""),
        here=request.url.path,
        **values,
    )
    response = HTMLResponse(text, status, headers={**HEADERS, **NOT_KEPT})
    if who.may_act:
        keep_token(request, response, token)
    return response


def _told(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, NotThere):
        return 404, str(error)
    if isinstance(error, RunonceError):
        return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500), str(error)
    return 500, "An error of the dashboard's own, which its log has. Nothing of what runs depends on it."
