"""HTTP: the dashboard's addresses, headers and forms, and requests with a key; as whatever reaches them sends them."""

from __future__ import annotations

import asyncio
import string
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import azure.functions as func

from fuzz.texts import NOW, nightly, send_invoice
from runonce.errors import TransportError
from runonce.hosts.dashboard.access import EasyAuth, Loopback
from runonce.hosts.dashboard.app import make
from runonce.hosts.discover import Discovered
from runonce.hosts.functions.idempotent import _Guarded, _recorded, _response
from runonce.hosts.runtime import Runtime
from runonce.messages.once import define
from runonce.settings import Settings, StorageConnection
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock, MemorySender

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message

DAY = timedelta(days=1)


class _Away:
    """A broker that does not answer."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise TransportError(f"{name}: the broker is away")

        return call


def page(data: bytes) -> None:
    """`METHOD TARGET`, headers, an empty line, a form: a page, or a refusal in words."""
    asyncio.run(_page(data))


async def _page(data: bytes) -> None:
    head, _, form = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, _, target = first.partition(b" ")
    path, _, query = quote(target, safe=string.printable).partition("?")  # a server lets nothing else through
    headers = [(b"host", b"127.0.0.1")]
    headers += [
        (name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)
    ]
    runtime = _runtime()
    signed_in = any(name == b"x-ms-client-principal" for name, _ in headers)
    app = make(runtime, EasyAuth(may_act=True) if signed_in else Loopback("ada", may_act=True))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method.decode("latin-1") or "GET",
        "scheme": "http",
        "path": unquote("/" + path.lstrip("/")),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "server": ("127.0.0.1", 8391),
        "client": ("127.0.0.1", 50000),
    }
    sent: list[Message] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": form, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)  # raises what no handler made a page of
    status = sent[0]["status"]
    assert status < 500 or status == 503, sent


def http_request(data: bytes) -> None:
    """`METHOD URL`, an `Idempotency-Key`, an empty line, a body: a key or a refusal; a response is kept whole."""
    head, _, body = data.partition(b"\n\n")
    first, _, key = head.decode("latin-1").partition("\n")
    method, _, url = first.partition(" ")
    request = func.HttpRequest(method, url, headers={"Idempotency-Key": key}, body=body)
    begun = _Guarded(CHARGE, lambda _: None, required=True, client=None).begin(request)
    if isinstance(begun, tuple):
        assert all(isinstance(part, str) and part for part in begun)
    else:
        assert isinstance(begun, func.HttpResponse)
        assert 400 <= begun.status_code < 500
    given = func.HttpResponse(body, status_code=201, headers={"Location": "/invoices/17"})
    kept = _response(_recorded(CHARGE, "17", given))
    assert (kept.get_body(), kept.status_code, kept.headers["Location"]) == (body, 201, "/invoices/17")


def _runtime() -> Runtime:
    clock = ManualClock(NOW)
    runtime = Runtime(
        Settings("shop", StorageConnection("UseDevelopmentStorage=true")),
        found=Discovered({nightly.name: nightly}, {send_invoice.name: send_invoice}),
        stores=memory_stores(clock),
        clock=clock,
        sender=MemorySender(),
        transport=_Away(),
    )
    fire_time = nightly.schedule.previous(NOW)
    assert fire_time is not None
    runtime.dispatcher.execute(nightly, fire_time, by="timer")
    return runtime


CHARGE = define(
    send_invoice.body, "idempotent", name="charge", retention=60, busy="refuse", key=str, fingerprint=None
)
COOKIE = b"\ncookie: runonce-form=abc\n\nform=abc&"
TARGETS: dict[Callable[[bytes], None], tuple[bytes, ...]] = {
    page: (
        b"GET /",
        b"GET /jobs/nightly?outcome=failed&said=%F0%9F%98%80&code=a",
        b"GET /jobs/nightly/runs/2026-11-29T03:00:00Z?params=%7B%7D",
        b"GET /jobs/nightly/runs/0001-01-01T00:00:00+14:00",
        b"GET /handlers/send_invoice?key=A-17",
        b"GET /dead-letters?handler=send_invoice\nhost: [::1]:8391",
        b"GET /audit?days=7\nx-ms-client-principal: eyJjbGFpbXMiOlt7InR5cCI6InJvbGVzIiwidmFsIjoicnVub25jZS5hY3QifV19",
        b"POST /jobs/nightly/run"
        + COOKIE
        + b"at=2026-11-28T03:00:00Z&anyway=yes&param:region=us&param:count=x",
        b"POST /jobs/nightly/run\norigin: http://127.0.0.1\ncookie: runonce-form=%C3%BC\n\nform=%C3%BC",
        b"POST /jobs/nightly/backfill" + COOKIE + b"from=2026-11-20&to=2026-11-28T03:00:00Z&sure=yes",
        b"POST /jobs/nightly/pause" + COOKIE + b"why=%00%ED%A0%BD",
        b"POST /jobs/nightly/break-lease" + COOKIE + b"name=nightly",
        b"POST /jobs/nightly/runs/2026-11-29T03:00:00Z/replay" + COOKIE + b"params=&why=because",
        b"POST /jobs/nightly/runs/2026-11-29/mark-done" + COOKIE + b"params=%7B&why=because",
        b"POST /dead-letters/send_invoice/replay" + COOKIE + b"id=A-17",
        b"GET /trail\norigin: http://[",
        b"GET /held\nhost: [",
    ),
    http_request: (
        b'POST https://shop.example/api/charge?a=1\n"8e03978e-40d5"\n\n{"cents": 5}',
        b'POST https://shop.example/api/charge\n"a\\"b\\\\c"\n\n\xff\xfe',
        b"PUT https://[/api\n abc \n\n",
        b"GET x\n\xfc\n\n[[[",
    ),
}
