"""Requests to Azure Storage: one function, a pool of connections, and the credential the settings name.

The SDK's own clients take several times as much CPU for the same request, and a quarter of a second to import.
So what is asked for each message and each run is asked here, through azure-core's pipeline and its policies for
tokens and SAS; the SDK's clients serve what is rare. One call is one request: nothing is tried again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, urlsplit

import certifi
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import DecodeError, HttpResponseError
from azure.core.pipeline import Pipeline
from azure.core.pipeline.policies import (
    AzureSasCredentialPolicy,
    BearerTokenCredentialPolicy,
    SansIOHTTPPolicy,
)
from azure.core.pipeline.transport import HttpTransport
from azure.core.utils import parse_connection_string

from runonce.settings import CALL_TIMEOUT, address, emulator
from runonce.stores.azure.clients import credential, sdk_client
from runonce.stores.azure.kept import Answer, Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from xml.etree.ElementTree import Element

    from runonce.settings import StorageConnection
    from runonce.stores.azure.proxied import ByProxy

SCOPE = "https://storage.azure.com/.default"
VERSIONS = {"blob": "2021-12-02", "queue": "2021-12-02", "table": "2020-12-06"}
"""Of the REST interface: the first that takes tokens for tables, and one as old for the others."""
SIGNED = (
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)
"""Headers in a shared key's signature, in this order (Authorize with Shared Key, REST reference)."""
REFUSED = 400


@dataclass(slots=True)
class Request:
    """A request, as azure-core's pipeline and policies look at it; its own class does five times the work for one."""

    method: str
    url: str
    headers: dict[str, str]
    content: bytes | None
    multipart_mixed_info: None = None

    def prepare_multipart_body(self) -> int:
        """It is one request."""
        return 0

    @property
    def query(self) -> str:
        """What follows the question mark."""
        return urlsplit(self.url).query


class Reply:
    """An answer, as azure-core's policies and errors look at it."""

    def __init__(self, request: Request, answer: Answer) -> None:
        self.request = request
        self.status_code, self.reason, self.headers, self.content = answer

    def text(self) -> str:
        """Its body."""
        return self.content.decode("utf-8-sig", "replace")


class Connections(HttpTransport[Request, Reply]):
    """Sends on connections that are kept, of any number of services; those of a forked child are its own."""

    def __init__(self, *, own_machine: bool, connect: float = 3.0, read: float = CALL_TIMEOUT) -> None:
        self._own_machine = own_machine
        self._times = connect, read
        self._made: dict[str, Kept | ByProxy] = {}
        self._process = os.getpid()

    def send(self, request: Request, **_: Any) -> Reply:
        """Send it and read all of the answer.

        Raises:
            ServiceRequestError, ServiceResponseError: There was none.
        """
        if self._process != os.getpid():
            self._made, self._process = {}, os.getpid()
        server = "/".join(request.url.split("/", 3)[:3])
        ways = self._made.get(server) or self._made.setdefault(server, self._make(server))
        target = request.url.removeprefix(server)
        return Reply(request, ways.ask(request.method, target, request.headers, request.content))

    def _make(self, server: str) -> Kept | ByProxy:
        """Connections to a server, by a proxy where there is one: a machine's own emulator is not behind it."""
        environ = os.environ
        trusted = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE") or certifi.where()
        proxy = None if self._own_machine else proxy_of(server)
        if proxy is None:
            return Kept(server, *self._times, trusted)
        from runonce.stores.azure.proxied import ByProxy  # noqa: PLC0415 - where there is one

        return ByProxy(server, proxy, *self._times, trusted)

    def open(self) -> None:
        """Nothing: a connection is made when it is needed."""

    def close(self) -> None:
        """Let the connections go."""
        for ways in self._made.values():
            ways.close()
        self._made = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def proxy_of(server: str) -> str | None:
    """The proxy by which this machine reaches a server."""
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - a machine's own emulator does without

    address = urlsplit(server)
    proxies = {} if proxy_bypass(address.netloc) else getproxies()
    return proxies.get(address.scheme) or proxies.get("all")


def services(storage: StorageConnection, *names: str, transport: Any = None) -> list[Service]:
    """Services of an account ("blob", "queue", "table"), which share their connections and tokens."""
    token = None if storage.connection_string is not None else _Token(credential(storage), SCOPE)
    sends = transport or Connections(own_machine=storage.is_local)
    return [
        Service(name, *_reached(storage, name, token), sends, partial(sdk_client, storage, name, transport))
        for name in names
    ]


class Service:
    """One service of a storage account."""

    def __init__(self, name: str, url: str, policy: Any, transport: Any, sdk: Callable[[], Any]) -> None:
        self.name, self.url = name, url
        self.sdk = sdk
        """Gives the SDK's client of the service, for what is asked once in a namespace's life."""
        self._transport = transport
        self._pipeline: Pipeline[Request, Reply] = Pipeline(transport, [policy])

    def ask(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        """Send a request, whose path and query are quoted; its answer.

        Raises:
            HttpResponseError: It was refused; `error_code` has Azure's name for why.
            AzureError: Nobody answered.
        """
        date = formatdate(usegmt=True)
        known = {"x-ms-date": date, "x-ms-version": VERSIONS[self.name], "User-Agent": "runonce"}
        if self.name == "table":
            known["Date"] = date
        url = f"{self.url}/{path}?{query}" if query else f"{self.url}/{path}"
        if headers is not None:
            known.update(headers)
        if body:
            known["Content-Length"] = str(len(body))
        request = Request(method, url, known, body)
        reply = self._pipeline.run(request, stream=False).http_response
        if reply.status_code >= REFUSED:
            raise refusal(reply.status_code, reply.text(), reply)
        return reply

    def close(self) -> None:
        """Let the connections go."""
        self._transport.close()


def xml_of(reply: Reply) -> Element:
    """Its body, which is XML; raises DecodeError."""
    from xml.etree.ElementTree import ParseError, fromstring  # noqa: PLC0415 - rows and leases do without

    try:
        return fromstring(reply.content)  # noqa: S314 - of Azure's
    except ParseError as error:
        raise DecodeError(message=f"the answer cannot be read (ParseError: {error})") from error


def refusal(status: int, text: str, reply: Reply | None = None) -> HttpResponseError:
    """What a service says no with, in XML or JSON, as the SDK's error."""
    code = "" if reply is None else reply.headers.get("x-ms-error-code", "")
    said = ""
    try:
        told = json.loads(text)["odata.error"]
        code, said = str(told["code"]), str(told["message"]["value"])
    except (ValueError, KeyError, TypeError):
        for name, value in re.findall(r"<(Code|Message)>(.*?)</", text, re.DOTALL):
            code, said = (value, said) if name == "Code" else (code, value)
    error = HttpResponseError(message=said or code or f"status {status}")
    error.status_code, error.response = status, reply
    vars(error)["error_code"] = code
    return error


def _reached(storage: StorageConnection, service: str, token: Any) -> tuple[str, Any]:
    """The address of a service, and the policy that says who asks; ValueError where the settings do not tell."""
    text = storage.connection_string
    if text is None:
        return storage.endpoints[service].rstrip("/"), token
    said = parse_connection_string(emulator(text) or text)
    fields = {name.strip(): value.strip() for name, value in said.items()}
    account, url = fields.get("accountname", ""), address(fields, service)
    if sas := fields.get("sharedaccesssignature"):
        return url.rstrip("/"), AzureSasCredentialPolicy(AzureSasCredential(sas.lstrip("?")))
    if not (account and fields.get("accountkey")):
        raise ValueError("it has neither AccountName and AccountKey nor SharedAccessSignature")
    return url.rstrip("/"), _SharedKey(account, base64.b64decode(fields["accountkey"]), service)


class _Token(BearerTokenCredentialPolicy[Any, Any]):
    """A token, of the tenant that the service names where it is not the first one tried."""

    def on_challenge(self, request: Any, response: Any) -> bool:
        said = response.http_response.headers.get("WWW-Authenticate", "")
        named = dict(re.findall(r'(\w+)="?([^\s",]+)', said))
        tenant = urlsplit(named.get("authorization_uri") or named.get("authorization") or "").path
        resource = named.get("resource_id") or named.get("resource")
        if not tenant.strip("/") or not resource:
            return bool(super().on_challenge(request, response))
        self.authorize_request(
            request, f"{resource.rstrip('/')}/.default", tenant_id=tenant.strip("/").split("/")[0]
        )
        return True


class _SharedKey(SansIOHTTPPolicy[Request, Reply]):
    """The signature of an account's key."""

    def __init__(self, account: str, key: bytes, service: str) -> None:
        self._account, self._key, self._table = account, key, service == "table"

    def on_request(self, request: Any) -> None:
        asked = request.http_request
        url, headers = urlsplit(asked.url), asked.headers
        named = sorted(parse_qsl(url.query, keep_blank_values=True))
        resource = f"/{self._account}{url.path}"
        if self._table:
            resource += "".join(f"?comp={value}" for name, value in named if name == "comp")
            lines = [headers.get(name, "") for name in ("Content-MD5", "Content-Type", "Date")]
        else:
            resource += "".join(f"\n{name.lower()}:{value}" for name, value in named)
            lines = [headers.get(name, "") for name in SIGNED]
            lines[2] = "" if lines[2] == "0" else lines[2]
            lines += [
                f"{name.lower()}:{value}"
                for name, value in sorted(headers.items())
                if name.startswith("x-ms-")
            ]
        text = "\n".join([asked.method, *lines, resource])
        signature = base64.b64encode(hmac.new(self._key, text.encode(), hashlib.sha256).digest()).decode()
        headers["Authorization"] = f"SharedKey {self._account}:{signature}"
