"""`Idempotency-Key` on functions of HTTP requests: in the production worker, and each rule on its own."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

import azure.functions as func
import pytest

from runonce import InputError, RunonceError
from runonce.hosts.functions import idempotent
from runonce.testing import Workbench
from runonce.testing.faults import PassingClock
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import FunctionsHost, Invocation, http
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


ROUTES = textwrap.dedent("""

    import azure.functions as func
    import json, logging, threading
    from runonce.once import Call
    from runonce.hosts.functions import idempotent

    go_on = threading.Event()

    @app.route(route="orders", methods=["POST"])
    @idempotent()
    def order(req: func.HttpRequest) -> func.HttpResponse:
        logging.info("ordering, attempt %d", Call.current().attempt)
        body = req.get_json()
        if body.get("slow"):
            go_on.wait(30)
        return func.HttpResponse(
            json.dumps({"order": body["n"]}), status_code=201, mimetype="application/json", headers={"Location": "/7"}
        )

    @app.route(route="async", methods=["POST"])
    @idempotent(required=False)
    async def order_async(req: func.HttpRequest) -> func.HttpResponse:
        logging.info("ordering")
        return func.HttpResponse(bytes([0, 255]), status_code=200, mimetype="application/octet-stream")

    @app.route(route="go", methods=["POST"])
    def go(req: func.HttpRequest) -> str:
        go_on.set()
        return "gone"
""")


@pytest.fixture(scope="module")
def host(azurite: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FunctionsHost]:
    """The shipped app with routes of its own beside the toolkit's functions."""
    folder: Path = make_app(tmp_path_factory.mktemp("routes") / "app", {})
    with (folder / "function_app.py").open("a") as app:
        app.write(ROUTES)
    with FunctionsHost(folder, environment(fresh_settings(azurite))) as made:
        yield made


def answer(invocation: Invocation) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the response."""
    assert invocation.success, invocation.exception
    response = invocation.result
    return int(response.status_code), dict(response.headers), response.body.bytes


def test_the_worker_answers_a_repetition_with_the_recorded_response(host: FunctionsHost) -> None:
    """Status, headers and body come again, and the function runs once; a bare key is the same as a quoted one."""
    first = host.invoke("order", http(body={"n": 1}, Idempotency_Key='"k-1"'))
    again = host.invoke("order", http(body='{ "n": 1 }', Idempotency_Key="k-1"))
    assert first.said("ordering, attempt 1")
    assert not again.said("ordering")
    status, headers, body = answer(first)
    assert (status, json.loads(body)) == (201, {"order": 1})
    assert {name.lower(): value for name, value in headers.items()}["location"] == "/7"
    assert answer(again) == (status, headers, body)


def test_the_worker_refuses_by_the_draft(host: FunctionsHost) -> None:
    """400 without the key, 409 while its request is at work, 422 with another request, as problem details."""
    assert answer(host.invoke("order", http(body={"n": 2})))[0] == 400
    slow = http(body={"n": 2, "slow": True}, Idempotency_Key='"k-2"')
    pending = host.start_invocation("order", slow)
    pending.wait_for_log("ordering")
    status, headers, body = answer(host.invoke("order", slow))
    assert status == 409
    assert {name.lower(): value for name, value in headers.items()}["content-type"].startswith(
        "application/problem+json"
    )
    assert json.loads(body)["title"] == "A request is outstanding for this Idempotency-Key"
    assert answer(host.invoke("order", http(body={"n": 3}, Idempotency_Key='"k-2"')))[0] == 422
    host.invoke("go", http())
    assert answer(pending.wait())[0] == 201
    assert answer(host.invoke("order", slow))[0] == 201


def test_an_async_function_answers_bytes_again(host: FunctionsHost) -> None:
    """A body that is no text comes again as it was; without a required key the function runs each time."""
    one = http(Idempotency_Key='"k-1"')  # of another function: another key
    runs = [host.invoke("order_async", one) for _ in range(2)]
    assert [answer(run)[2] for run in runs] == [bytes([0, 255])] * 2
    assert [run.said("ordering") for run in runs] == [True, False]
    assert [host.invoke("order_async", http()).said("ordering") for _ in range(2)] == [True, True]


# -- each rule, in memory -------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def bench() -> Iterator[None]:
    """Where the requests of a test are claimed that does without the worker."""
    with Workbench(clock=PassingClock()).inside():
        yield


def request(
    key: str | None = '"k"', *, body: bytes = b"", url: str = "https://a/api/x?q=1", **more: Any
) -> Any:
    """A request."""
    headers = {} if key is None else {"idempotency-key": key}
    return func.HttpRequest(more.pop("method", "POST"), url, headers=headers | more, body=body)


def serving(
    respond: Callable[[func.HttpRequest], Any], **options: Any
) -> tuple[Callable[[func.HttpRequest], func.HttpResponse], list[str]]:
    """A function under `@idempotent`, and the requests that it has run for."""
    ran = []

    @idempotent(**{"name": "serve", **options})
    def serve(req: func.HttpRequest) -> Any:
        ran.append(req.method)
        return respond(req)

    return serve, ran


@pytest.mark.parametrize(
    "key",
    ["", " ", '""', '" "', '"', '"a', 'a"b', '"a"b"', "a b", '"a\\b"', '"\u00fc"', '"a";x', f'"{"k" * 256}"'],
)
def test_a_malformed_key_is_refused(key: str) -> None:
    """What is no text of structured fields, and no plain word, is 400; nothing runs."""
    serve, ran = serving(lambda _: "done")
    response = serve(request(key))
    assert (response.status_code, json.loads(response.get_body())["title"]) == (
        400,
        "Idempotency-Key is malformed",
    )
    assert ran == []


@pytest.mark.parametrize(
    "key", ['"a\\"b\\\\"', '"8e03978e-40d5-43dd-bc93-6894a57f9324"', "plain-word", f'"{"k" * 255}"']
)
def test_a_key_is_text_of_structured_fields_or_a_word(key: str) -> None:
    """Escapes are read; such a key runs the function once."""
    serve, ran = serving(lambda _: "done")
    assert [serve(request(key)).get_body() for _ in range(2)] == [b"done", b"done"]
    assert ran == ["POST"]


@pytest.mark.parametrize(
    "other",
    [
        {"body": b"{}"},
        {"url": "https://a/api/y?q=1"},
        {"url": "https://a/api/x?q=2"},
        {"method": "PUT"},
    ],
)
def test_another_request_of_the_key_is_refused(other: dict[str, Any]) -> None:
    """Method, path, query and body make a request; the app's name does not."""
    serve, ran = serving(lambda _: "done")
    serve(request())
    assert serve(request(url="https://b/api/x?q=1")).status_code == 200
    response = serve(request(**other))
    assert (response.status_code, json.loads(response.get_body())["title"]) == (
        422,
        "Idempotency-Key is already used",
    )
    assert len(ran) == 1


@pytest.mark.parametrize("status", [200, 204, 302, 400, 404, 499])
def test_a_response_below_500_is_recorded(status: int) -> None:
    """Also a refusal of the function's own: the client's request is at fault, and stays so."""
    serve, ran = serving(lambda _: func.HttpResponse(status_code=status))
    assert [serve(request()).status_code for _ in range(2)] == [status, status]
    assert len(ran) == 1


def test_a_failure_is_not_recorded() -> None:
    """A response of 500 or more goes to its client, an exception to the host; the next request runs the function."""
    responses: list[Any] = [503, ValueError("no"), InputError("of the function's own"), 201]

    def respond(_: func.HttpRequest) -> func.HttpResponse:
        following = responses.pop(0)
        if isinstance(following, Exception):
            raise following
        return func.HttpResponse(str(following), status_code=following)

    serve, ran = serving(respond)
    assert serve(request()).status_code == 503
    for error in (ValueError, InputError):
        with pytest.raises(error):
            serve(request())
    assert [serve(request()).status_code for _ in range(2)] == [201, 201]
    assert len(ran) == 4


def test_headers_that_come_twice_come_again() -> None:
    """Two cookies are two headers in the recorded response too."""

    def respond(_: func.HttpRequest) -> func.HttpResponse:
        response = func.HttpResponse("ü", charset="utf-8")
        for cookie in ("a=1", "b=2"):
            response.headers.add_header("Set-Cookie", cookie)
        return response

    serve, _ = serving(respond)
    for response in (serve(request()), serve(request())):
        assert response.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
        assert response.get_body() == "ü".encode()


def test_clients_have_nothing_in_common() -> None:
    """Where the function says who its clients are, one client's key is not another's."""
    serve, ran = serving(lambda req: req.headers["user"], client=lambda req: req.headers["user"])
    answers = [serve(request(user=user)).get_body() for user in ("ada", "bob", "ada")]
    assert answers == [b"ada", b"bob", b"ada"]
    assert len(ran) == 2


@pytest.mark.parametrize("bad", [None, 7, {"a": 1}, func.HttpResponse("x" * 40_000)])
def test_a_response_that_cannot_be_kept_is_told(bad: Any) -> None:
    """The host gets the error, and nobody runs the function again under that key."""
    serve, ran = serving(lambda _: bad)
    for _ in range(2):
        with pytest.raises(
            RunonceError, match=r"serve, key 'k': it ran, but|serve, key 'k': it failed for good before"
        ):
            serve(request())
    assert len(ran) == 1


def test_a_function_without_a_request_is_told() -> None:
    """The error names the function and what it is for."""
    serve, _ = serving(lambda _: "done")
    with pytest.raises(
        InputError, match=r"serve: @idempotent is for a function of an azure\.functions\.HttpRequest"
    ):
        serve("no request")  # type: ignore[arg-type]
