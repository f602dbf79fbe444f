"""The dashboard as a function: below the route, behind a key or Easy Auth, and not there unless it is wanted."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import azure.functions as func
import pytest
from support.namespaces import fresh_settings

from runonce.hosts.discover import Discovered
from runonce.hosts.functions.dashboard import NAME, add_dashboard
from runonce.hosts.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable


def function_of(azurite: str, said: str) -> tuple[Any, Runtime]:
    """The dashboard's function and what it works on."""
    runtime = Runtime(replace(fresh_settings(azurite), dashboard=said), found=Discovered({}))
    app = func.FunctionApp()
    add_dashboard(app, runtime)
    (function,) = app.get_functions()
    assert function.get_function_name() == NAME
    return function, runtime


def ask(function: Any, path: str, **headers: str) -> func.HttpResponse:
    """What the host gets from the function for an address."""
    request = func.HttpRequest(
        method="GET",
        url=f"https://app.example/api/runonce{path}",
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        params=dict(part.split("=") for part in path.partition("?")[2].split("&") if part),
        route_params={"path": path.strip("/").partition("?")[0]},
        body=b"",
    )
    body: Callable[..., Any] = function.get_user_function()
    answer: func.HttpResponse = asyncio.run(body(request, None))
    return answer


def signed_in(*roles: str) -> str:
    claims = [{"typ": "name", "val": "Ada"}, *({"typ": "roles", "val": role} for role in roles)]
    return base64.b64encode(
        json.dumps({"claims": claims, "name_typ": "name", "role_typ": "roles"}).encode()
    ).decode()


def level(function: Any) -> str:
    binding = next(one for one in function.get_bindings_dict()["bindings"] if one["type"] == "httpTrigger")
    return str(binding["authLevel"]).rpartition(".")[2].upper()


def test_there_is_none_unless_it_is_wanted(azurite: str) -> None:
    """Without the setting the app has no function that answers the web."""
    app = func.FunctionApp()
    add_dashboard(app, Runtime(fresh_settings(azurite), found=Discovered({})))
    assert app.get_functions() == []


@pytest.mark.parametrize("path", ["/", "", "/held", "/static/runonce.css"])
def test_pages_are_below_the_route(azurite: str, path: str) -> None:
    """With a function key, which the host checks; the pages' links lead below the route and keep the key."""
    function, runtime = function_of(azurite, "read")
    with runtime:
        assert level(function) == "FUNCTION"
        answer = ask(function, f"{path}?code=secret-key")
        assert answer.status_code == 200
        text = answer.get_body().decode()
    if "css" not in path:
        assert 'href="/api/runonce/held?code=secret-key"' in text
        assert "read only" in text


def test_easy_auth_says_who_may_look_and_who_may_act(azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody: 401. Somebody without a role: 403. A reader sees no form, and who may act sees them."""
    monkeypatch.setenv("WEBSITE_AUTH_ENABLED", "True")
    function, runtime = function_of(azurite, "act")
    with runtime:
        assert level(function) == "ANONYMOUS"
        assert ask(function, "/").status_code == 401
        assert ask(function, "/", x_ms_client_principal="bm8ganNvbg==").status_code == 401
        assert ask(function, "/", x_ms_client_principal=signed_in("other")).status_code == 403
        reader = ask(function, "/trail", x_ms_client_principal=signed_in("runonce.read")).get_body().decode()
        assert "Ada (read only)" in reader
        actor = ask(function, "/trail", x_ms_client_principal=signed_in("runonce.act")).get_body().decode()
        assert "Ada" in actor
        assert "read only" not in actor


def test_without_easy_auth_its_header_is_nobody(azurite: str) -> None:
    """A client that sends the header itself gains nothing where no authentication is on."""
    function, runtime = function_of(azurite, "read")
    with runtime:
        text = ask(function, "/trail", x_ms_client_principal=signed_in("runonce.act")).get_body().decode()
    assert "Ada" not in text
    assert "a holder of the function key (read only)" in text
