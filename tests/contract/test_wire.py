"""The toolkit's own requests to storage: those of Azure's clients, and everything between a program and a service."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import re
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from azure.core import MatchConditions
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline.transport import RequestsTransport
from azure.data.tables import EdmType, EntityProperty, TableServiceClient, TransactionOperation, UpdateMode
from azure.storage.blob import (
    AccountSasPermissions,
    BlobLeaseClient,
    BlobServiceClient,
    ResourceTypes,
    generate_account_sas,
)
from azure.storage.queue import QueueClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from runonce.errors import StoreUnavailableError
from runonce.settings import StorageConnection
from runonce.stores.azure import wire
from runonce.stores.azure.kept import Kept
from runonce.stores.azure.leases import AzureLeases
from runonce.stores.azure.queues import Queue
from runonce.stores.azure.stores import azure_stores
from runonce.stores.azure.tables import AzureTable
from runonce.stores.azure.wire import services
from runonce.stores.protocols import Delete, Insert, Replace
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from pathlib import Path

KEPT = re.compile(r"if-.*match|x-ms-(lease|blob|proposed).*|prefer")
ROW = {"text": "é\"x'\n", "int": 1, "big": 2**40, "half": 1.5, "whole": 2.0, "true": True, "empty": ""}
HOLDER = "11111111-2222-3333-4444-555555555555"

# -- request by request ------------------------------------------------------------------------------------------


class Recording(RequestsTransport):
    """Notes what matters of each request that goes out."""

    def __init__(self) -> None:
        super().__init__(connection_timeout=3, read_timeout=10)
        self.seen: list[Any] = []
        self._ours = wire.Connections(own_machine=True)

    def send(self, request: Any, **options: Any) -> Any:
        body = getattr(request, "content", None) or getattr(request, "body", None)
        self.seen.append(as_meant(request.method, request.url, dict(request.headers), body))
        return (
            self._ours.send(request)
            if isinstance(request, wire.Request)
            else super().send(request, **options)
        )


def as_meant(method: str, url: str, headers: dict[str, str], body: Any) -> tuple[Any, ...]:
    """A request without what differs each time, and without how it is written."""
    address = urlsplit(url)
    kept = {name.lower(): value for name, value in headers.items() if KEPT.fullmatch(name.lower())}
    kind = headers.get("Content-Type", "").partition(";")[0] if body else ""
    if kind == "multipart/mixed":
        body = parts(body.decode() if isinstance(body, bytes) else str(body))
    elif kind == "application/json":
        body = columns(body)
    elif isinstance(body, bytes):
        body = body.decode()
    return method, unquote(address.path), sorted(parse_qsl(address.query)), kept, kind, body or None


def columns(body: Any) -> dict[str, Any]:
    """A row without what says that text is text."""
    return {name: value for name, value in json.loads(body).items() if value != "Edm.String"}


def parts(text: str) -> list[Any]:
    """The writes in a transaction."""
    found = re.findall(r"\r\n\r\n(\w+) (\S+) HTTP/1\.1\r\n(.*?)\r\n\r\n(.*?)\r\n--", text, re.DOTALL)
    return [
        (method, unquote(urlsplit(url).path), re.findall(r"If-Match: (.*)", head), columns(body or "{}"))
        for method, url, head, body in found
    ]


def rows_by_sdk(connection: str, transport: Any) -> None:
    service = TableServiceClient.from_connection_string(connection, transport=transport, retry_total=0)
    table = service.get_table_client("wire")
    keys = {"PartitionKey": "p|a'b", "RowKey": "k:1'ü"}
    row = {**keys, **ROW, "big": (2**40, EdmType.INT64)}
    made: Any = table.create_entity(row, response_preference="return-no-content")
    table.get_entity(keys["PartitionKey"], keys["RowKey"])
    unchanged: dict[str, Any] = {"match_condition": MatchConditions.IfNotModified}
    done: Any = table.update_entity(row, UpdateMode.REPLACE, etag=made["etag"], **unchanged)
    where = "PartitionKey eq @p and RowKey ge @a and RowKey lt @z and text gt '' and text lt @t"
    names = {"p": "p|a'b", "a": "k", "z": "l'", "t": "x'"}
    list(table.query_entities(where, parameters=names, results_per_page=7))
    other = {"PartitionKey": "p|a'b", "RowKey": "other"}
    two: Any = table.submit_transaction(
        [
            (
                TransactionOperation.UPDATE,
                row,
                {"etag": done["etag"], "mode": UpdateMode.REPLACE, **unchanged},
            ),
            (TransactionOperation.CREATE, other),
        ]
    )
    table.submit_transaction(
        [
            (TransactionOperation.DELETE, keys, {"etag": two[0]["etag"], **unchanged}),
            (TransactionOperation.DELETE, other, {"etag": two[1]["etag"], **unchanged}),
        ]
    )


def rows_by_us(connection: str, transport: Any) -> None:
    (service,) = services(StorageConnection(connection), "table", transport=transport)
    table = AzureTable(service, "wire")
    key = "k:1'ü"
    (etag,) = table.commit("p|a'b", [Insert(key, ROW)])
    table.get("p|a'b", key)
    (etag,) = table.commit("p|a'b", [Replace(key, ROW, etag)])
    list(table.scan("p|a'b", "k", "l'", limit=7, before=("text", "x'")))
    one, two = table.commit("p|a'b", [Replace(key, ROW, etag), Insert("other", {})])
    table.commit("p|a'b", [Delete(key, one), Delete("other", two)])


def leases_by_sdk(connection: str, transport: Any) -> None:
    service = BlobServiceClient.from_connection_string(connection, transport=transport, retry_total=0)
    blob = service.get_blob_client("wire", "ns/a b|é")
    with suppress(HttpResponseError):
        blob.acquire_lease(lease_duration=15, lease_id=HOLDER)
    service.create_container("wire")
    blob.upload_blob(b"", overwrite=False)
    blob.acquire_lease(lease_duration=15, lease_id=HOLDER)
    lease = BlobLeaseClient(blob, lease_id=HOLDER)
    lease.renew()
    blob.get_blob_properties()
    lease.release()
    blob.acquire_lease(lease_duration=15, lease_id=HOLDER)
    blob.get_blob_properties()
    lease.break_lease(lease_break_period=0)


def leases_by_us(connection: str, transport: Any) -> None:
    (service,) = services(StorageConnection(connection), "blob", transport=transport)
    leases, name = AzureLeases(service, "wire"), "ns/a b|é"
    assert leases.acquire(name, HOLDER, 15) is not None
    assert leases.renew(name, HOLDER)
    assert leases.held(name)
    leases.release(name, HOLDER)
    assert leases.acquire(name, HOLDER, 15) is not None
    assert leases.break_lease(name)


def queue_by_sdk(connection: str, transport: Any) -> None:
    queue = QueueClient.from_connection_string(connection, "wire", transport=transport, retry_total=0)
    with suppress(HttpResponseError):
        queue.send_message("a<b&c>\"'é", visibility_timeout=0, time_to_live=-1)
    queue.create_queue()
    queue.send_message("a<b&c>\"'é", visibility_timeout=0, time_to_live=-1)
    queue.peek_messages(max_messages=3)
    message = queue.receive_message(visibility_timeout=30)
    assert message is not None
    again = queue.update_message(message.id, pop_receipt=message.pop_receipt, visibility_timeout=5)
    queue.delete_message(message.id, pop_receipt=again.pop_receipt)


def queue_by_us(connection: str, transport: Any) -> None:
    (service,) = services(StorageConnection(connection), "queue", transport=transport)
    queue = Queue(service, "wire")
    queue.send("a<b&c>\"'é", hidden=0, lives=-1)
    queue.peek(3)
    (message,) = queue.receive(1, hidden=30)
    assert message.content == "a<b&c>\"'é"
    receipt = queue.update(message.id, message.pop_receipt, hidden=5)
    assert receipt is not None
    assert queue.delete(message.id, receipt)


def remove(connection: str) -> None:
    """As if none of them had been there."""
    with suppress(HttpResponseError):
        QueueClient.from_connection_string(connection, "wire").delete_queue()
    with suppress(HttpResponseError):
        BlobServiceClient.from_connection_string(connection).delete_container("wire")
    TableServiceClient.from_connection_string(connection).create_table_if_not_exists("wire")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(rows_by_sdk, rows_by_us), (leases_by_sdk, leases_by_us), (queue_by_sdk, queue_by_us)],
    ids=["rows", "leases", "queue"],
)
def test_our_requests_are_those_of_azures_clients(
    azurite: str, theirs: Callable[[str, Any], None], ours: Callable[[str, Any], None]
) -> None:
    """Method, address, query, conditions and body: each request is what the SDK's client sends for the same call."""
    seen = []
    for by in (theirs, ours):
        remove(azurite)
        recording = Recording()
        by(azurite, recording)
        seen.append([without_etags(one) for one in recording.seen])
    for one, other in zip(*seen, strict=True):
        assert one == other


def without_etags(request: Any) -> str:
    """Etags, receipts and ids are of the moment."""
    text = re.sub(r"datetime\\?'[^']*'", "datetime", repr(request))
    return re.sub(r"/[0-9a-f-]{36}'|'popreceipt', '[^']*'", "…", text)


@pytest.mark.parametrize(
    "value",
    [
        EntityProperty(uuid.UUID(HOLDER), EdmType.GUID),
        dt.datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=dt.UTC),
        b"\x00\xff",
        float("nan"),
        float("-inf"),
    ],
    ids=["guid", "instant", "bytes", "not a number", "infinity"],
)
def test_a_column_of_another_type_is_kept(azurite: str, value: Any) -> None:
    """What a person wrote into a row with a type of its own is the same after the row was read and written again."""
    theirs = TableServiceClient.from_connection_string(azurite).create_table_if_not_exists("wiretypes")
    (service,) = services(StorageConnection(azurite), "table")
    ours, key = AzureTable(service, "wiretypes"), uuid.uuid4().hex
    theirs.create_entity({"PartitionKey": "p", "RowKey": key, "odd": value})
    before = theirs.get_entity("p", key)["odd"]
    row = ours.get("p", key)
    assert row is not None
    ours.commit("p", [Replace(key, {**row.values, "more": 1}, row.etag)])
    after = theirs.get_entity("p", key)["odd"]
    assert repr(getattr(after, "value", after)) == repr(getattr(before, "value", before))


# -- between a program and a service -----------------------------------------------------------------------------

Said = tuple[int, dict[str, str], bytes]


class Server:
    """A server that answers as it is told, and notes what it was asked."""

    def __init__(self, answer: Callable[[Any], Said | None], tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.connections = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server.connections += 1

            def log_message(self, *_: Any) -> None:
                """Silence."""

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.asked.append(
                    (self.command, self.path, {name.lower(): text for name, text in self.headers.items()})
                )
                said = answer(self)
                if said is None:
                    return
                status, headers, body = said
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body * (self.command != "HEAD"))

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_CONNECT = _answer  # noqa: N815

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    made: list[Server] = []

    def start(answer: Callable[[Any], Said | None], tls: ssl.SSLContext | None = None) -> Server:
        made.append(Server(answer, tls))
        return made[-1]

    yield start
    for server in made:
        server.close()


ENTITY = json.dumps(
    {
        "odata.etag": "e",
        "PartitionKey": "p",
        "RowKey": "k",
        "Timestamp": "2026-01-02T03:04:05.1234567Z",
        "n": 5,
    }
).encode()
KEY = base64.b64encode(b"a key").decode()


def found(_: Any) -> Said:
    return 200, {"Content-Type": "application/json"}, ENTITY


def table_at(url: str, *, account: str = f"AccountName=shop;AccountKey={KEY}") -> AzureTable:
    """A table of the account whose table service is there."""
    text = (
        f"DefaultEndpointsProtocol=https;{account};TableEndpoint={url};BlobEndpoint={url};QueueEndpoint={url}"
    )
    return AzureTable(services(StorageConnection(text), "table")[0], "rows")


def value(table: AzureTable) -> Any:
    row = table.get("p", "k")
    assert row is not None
    return row.values["n"]


def test_everything_else_goes_by_the_networks_proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy with a password is asked for a service elsewhere; not for an excepted one, nor for this machine's."""
    proxy, direct = serve(found), serve(found)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy.url.replace("//", "//me:s%40cret@"))
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert value(table_at("http://shop.example/account")) == 5
    (method, target, headers) = proxy.asked[0]
    assert (method, target) == ("GET", "http://shop.example/account/rows(PartitionKey='p',RowKey='k')")
    assert base64.b64decode(headers["proxy-authorization"].removeprefix("Basic ")) == b"me:s@cret"
    assert value(table_at(direct.url)) == 5
    monkeypatch.setenv("no_proxy", "shop.example")
    with pytest.raises(StoreUnavailableError):
        table_at("http://shop.example").get("p", "k")
    assert len(proxy.asked) == 1


def test_a_service_with_tls_is_asked_through_a_tunnel(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is asked to connect, and sees no more; where it does not, the outcome is unknown."""
    proxy = serve(lambda _: (502, {}, b""))
    monkeypatch.setenv("https_proxy", proxy.url)
    with pytest.raises(StoreUnavailableError):
        table_at("https://shop.example").get("p", "k")
    assert [(method, target) for method, target, _ in proxy.asked] == [("CONNECT", "shop.example:443")]


def test_a_connection_is_kept_and_one_that_was_dropped_is_made_anew(serve: Serve) -> None:
    """Calls share a connection; one that the server has closed while it was idle costs no call its answer."""
    server = serve(found)
    table = table_at(server.url)
    assert [value(table) for _ in range(3)] == [5] * 3
    assert server.connections == 1

    def closing(handler: Any) -> Said:
        handler.close_connection = True  # without saying so
        return found(handler)

    server = serve(closing)
    table = table_at(server.url)
    for _ in range(3):
        assert value(table) == 5
        time.sleep(0.05)  # for the server's end to arrive
    assert (server.connections, len(server.asked)) == (3, 3)


def test_a_server_that_says_it_closes_is_asked_on_another(serve: Serve) -> None:
    """Its word is taken: nothing is sent on what it is about to close."""
    server = serve(lambda _: (200, {"Connection": "close"}, ENTITY))
    table = table_at(server.url)
    assert [value(table) for _ in range(3)] == [5] * 3
    assert (server.connections, len(server.asked)) == (3, 3)


def test_a_request_is_one_call_of_the_system(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head and its body are sent together."""
    sent: list[bytes] = []

    class Noting(socket.socket):
        def sendall(self, data: Any, *_: Any) -> None:
            sent.append(data)
            super().sendall(data)

    make = Kept._new

    def noting(kept: Kept) -> socket.socket:
        connection = make(kept)
        made = Noting(fileno=connection.detach())
        made.settimeout(5)
        return made

    monkeypatch.setattr(Kept, "_new", noting)
    table = table_at(serve(lambda _: (204, {"ETag": "e"}, b"")).url)
    for key in ("a", "b"):
        assert table.commit("p", [Insert(key, {"n": 1})]) == ["e"]
    assert len(sent) == 2
    assert all(text.startswith(b"POST ") and text.endswith(b'"n": 1}') for text in sent)


def test_an_address_is_sent_as_one_whatever_is_in_it(serve: Serve) -> None:
    """What somebody typed without quoting it is quoted; a line's end in a header is refused, and nothing sent."""
    server = serve(found)
    assert value(table_at(f"{server.url}/ä b")) == 5
    assert server.asked[0][1] == "/%C3%A4%20b/rows(PartitionKey='p',RowKey='k')"
    (service,) = services(
        StorageConnection(f"AccountName=a;AccountKey={KEY};TableEndpoint={server.url}"), "table"
    )
    with pytest.raises(ValueError, match="a line's end"):
        service.ask("GET", "x", headers={"If-Match": "a\r\nX: b"})
    assert len(server.asked) == 1


def test_answers_in_chunks_are_read_whole_or_not_at_all(serve: Serve) -> None:
    """A chunked reply is an answer; one that ends early, with a length or in chunks, is none."""

    def chunked(handler: Any, end: bytes) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for chunk in (ENTITY[:20], ENTITY[20:]):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        handler.wfile.write(end)
        handler.close_connection = not end

    def short(handler: Any) -> Said:
        handler.close_connection = True
        return 200, {"Content-Length": str(len(ENTITY) + 1)}, ENTITY

    def dated(handler: Any) -> None:
        chunked(handler, b"0\r\n\r\n")

    assert value(table_at(serve(dated).url)) == 5
    for answer in (lambda handler: chunked(handler, b""), short, lambda _: (200, {}, b'{"odd": 1}')):
        server = serve(answer)
        with pytest.raises(StoreUnavailableError):
            table_at(server.url).get("p", "k")
        assert len(server.asked) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "runonce tests")])
    now = dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(made.public_bytes(pem) + secret)
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_is_checked(
    serve: Serve, tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nobody trusts ends the call before anything is asked; one of the bundle that is named is taken."""
    server = serve(found, tls)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreUnavailableError):
        table_at(server.url).get("p", "k")
    assert server.asked == []
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert value(table_at(server.url)) == 5


class Signing:
    """Gives tokens, and notes what for."""

    def __init__(self, lifetime: int = 3600) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.lifetime = lifetime

    def get_token(self, *scopes: str, tenant_id: str | None = None, **_: Any) -> AccessToken:
        self.asked.append((scopes[0], tenant_id))
        return AccessToken(f"token-{len(self.asked)}", int(time.time()) + self.lifetime)


@pytest.fixture
def signing(monkeypatch: pytest.MonkeyPatch, certificate: Path) -> Signing:
    made = Signing()
    monkeypatch.setattr(wire, "credential", lambda _: made)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    return made


def tables_with_token(url: str) -> AzureTable:
    endpoints = dict.fromkeys(("blob", "queue", "table"), url)
    return AzureTable(services(StorageConnection(endpoints=endpoints), "table")[0], "rows")


def test_a_token_is_asked_for_once_and_again_before_it_runs_out(
    serve: Serve, tls: ssl.SSLContext, signing: Signing
) -> None:
    """Every request has it; one that ends within minutes is replaced for the next request; none goes without TLS."""
    server = serve(found, tls)
    table = tables_with_token(server.url)
    for _ in range(3):
        value(table)
    assert signing.asked == [("https://storage.azure.com/.default", None)]
    assert [headers["authorization"] for _, _, headers in server.asked] == ["Bearer token-1"] * 3
    signing.lifetime = 60
    table = tables_with_token(server.url)
    value(table)
    value(table)
    assert server.asked[-1][2]["authorization"] == "Bearer token-3"
    plain = serve(found)
    with pytest.raises(StoreUnavailableError):
        tables_with_token(plain.url).get("p", "k")
    assert plain.asked == []


def test_a_challenge_names_the_tenant(serve: Serve, tls: ssl.SSLContext, signing: Signing) -> None:
    """A service of another tenant says which: the token is asked for there, and the request sent once more."""
    challenge = (
        'Bearer authorization_uri="https://login.microsoftonline.com/their-tenant/oauth2/authorize" '
        'resource_id="https://storage.azure.com"'
    )

    def answer(handler: Any) -> Said:
        if handler.headers["Authorization"] == "Bearer token-1":
            return 401, {"WWW-Authenticate": challenge}, b""
        return found(handler)

    server = serve(answer, tls)
    table = tables_with_token(server.url)
    assert [value(table), value(table)] == [5, 5]
    assert signing.asked[1] == ("https://storage.azure.com/.default", "their-tenant")
    assert [h["authorization"][-1] for _, _, h in server.asked] == ["1", "2", "2"]


def test_a_busy_server_says_for_how_long(serve: Serve) -> None:
    """Its Retry-After is in the error, for whoever tries again; the request was sent once."""
    server = serve(lambda _: (503, {"Retry-After": "7"}, b""))
    with pytest.raises(StoreUnavailableError) as busy:
        table_at(server.url).get("p", "k")
    assert busy.value.retry_after == 7
    assert len(server.asked) == 1


def test_a_shared_access_signature_is_enough(azurite: str) -> None:
    """Leases, rows, requests and blobs with a signature for the account instead of its key."""
    fields = dict(part.partition("=")[::2] for part in azurite.split(";") if part)
    sas = generate_account_sas(
        fields["AccountName"],
        fields["AccountKey"],
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions.from_string("rwdlacup"),
        dt.datetime.now(dt.UTC) + dt.timedelta(hours=1),
        services="bqt",
    )
    ends = ";".join(f"{name}={text}" for name, text in fields.items() if name.endswith("Endpoint"))
    stores = azure_stores(fresh_settings(f"{ends};SharedAccessSignature={sas}"))
    holder = str(uuid.uuid4())
    assert stores.leases.acquire("sas", holder, 15) is not None
    stores.leases.release("sas", holder)
    stores.requests.send("hello")
    item = stores.requests.receive(visibility=5)
    assert item is not None
    assert item.body == "hello"
    one, two = stores.runs.commit("sas", [Insert(uuid.uuid4().hex, {}), Insert(uuid.uuid4().hex, {})])
    assert one != two
    stores.blobs.write("sas", b"x", {}, etag=None, content_type="a/b")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (f"AccountName=shop;AccountKey={KEY}", "https://shop.table.core.windows.net"),
        (
            f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={KEY};EndpointSuffix=core.chinacloudapi.cn",
            "https://shop.table.core.chinacloudapi.cn",
        ),
        (
            f"AccountName=shop;AccountKey={KEY};TableEndpoint=https://shop.z1.table.storage.azure.net/",
            "https://shop.z1.table.storage.azure.net",
        ),
        (
            f"defaultendpointsprotocol = http ; accountname=shop;accountkey={KEY}",
            "http://shop.table.core.windows.net",
        ),
    ],
)
def test_an_account_may_be_in_any_cloud(text: str, url: str) -> None:
    """The address is what the connection string says, in whichever of its forms."""
    assert services(StorageConnection(text), "table")[0].url == url


def test_every_request_says_its_version(serve: Serve) -> None:
    """An answer is of the interface that was asked for, whatever the service's newest is."""
    server = serve(lambda _: (200, {}, b"<QueueMessagesList/>"))
    ends = ";".join(f"{service}Endpoint={server.url}" for service in ("Blob", "Queue", "Table"))
    account = StorageConnection(f"AccountName=a;AccountKey={KEY};{ends}")
    blob, queue, table = services(account, "blob", "queue", "table")
    AzureLeases(blob, "c").held("x")
    Queue(queue, "q").peek(1)
    AzureTable(table, "t").commit("p", [Insert("k", {})])
    assert [h["x-ms-version"] for _, _, h in server.asked] == ["2021-12-02", "2021-12-02", "2020-12-06"]


def test_many_threads_keep_their_connections(serve: Serve) -> None:
    """Forty calls at once have a connection each, and the next forty have the same ones."""
    together = threading.Barrier(40)

    def answer(handler: Any) -> Said:
        together.wait(10)
        return found(handler)

    server = serve(answer)
    table = table_at(server.url)
    for _ in range(3):
        threads = [threading.Thread(target=lambda: value(table)) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (server.connections, len(server.asked)) == (40, 120)
