"""The dashboard as an HTTP-triggered function, behind a function key or App Service authentication (Easy Auth)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import azure.functions as func

from runonce.errors import MissingExtraError

if TYPE_CHECKING:
    from runonce.hosts.runtime import Runtime

NAME = "runonce_dashboard"
BELOW = "/runonce"
"""Where it is, after host.json's routePrefix: https://APP/api/runonce/"""


def add_dashboard(app: func.FunctionApp, runtime: Runtime) -> None:
    """Add the function where RUNONCE_DASHBOARD says "read" or "act"; by default there is none.

    Raises:
        MissingExtraError: The dashboard's packages are not installed.
    """
    allowed = runtime.settings.dashboard
    if allowed in ("", "off"):
        return
    try:
        from runonce.hosts.dashboard.access import EasyAuth, Key  # noqa: PLC0415 - where it is wanted
        from runonce.hosts.dashboard.app import make  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError("RUNONCE_DASHBOARD", "dashboard") from error
    # Set by App Service where authentication is on; only then nobody but it can set the header with the person.
    signed_in = os.environ.get("WEBSITE_AUTH_ENABLED", "").lower() == "true"
    pages = make(runtime, EasyAuth(allowed == "act") if signed_in else Key(allowed == "act"))

    async def below(scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Whatever the route's prefix is, the pages are below it."""
        root = scope["path"][: scope["path"].index(BELOW) + len(BELOW)]
        path = scope["path"] if len(scope["path"]) > len(root) else f"{root}/"
        await pages({**scope, "root_path": root, "path": path}, receive, send)

    asgi = func.AsgiMiddleware(below)  # type: ignore[no-untyped-call]

    async def dashboard(req: func.HttpRequest, context: func.Context) -> func.HttpResponse:
        answer: func.HttpResponse = await asgi.handle_async(req, context)
        return answer

    route = app.route(
        route="runonce/{*path}",
        methods=[func.HttpMethod.GET, func.HttpMethod.POST],
        auth_level=func.AuthLevel.ANONYMOUS if signed_in else func.AuthLevel.FUNCTION,
    )
    app.function_name(NAME)(route(dashboard))
