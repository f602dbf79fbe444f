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
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
import urllib3
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import DecodeError, HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.core.pipeline import Pipeline
from azure.core.pipeline.policies import (
    AzureSasCredentialPolicy,
    BearerTokenCredentialPolicy,
    SansIOHTTPPolicy,
)
from azure.core.pipeline.transport import HttpTransport
from azure.core.rest import HttpRequest
from azure.core.utils import parse_connection_string
from urllib3.exceptions import HTTPError, NewConnectionError, ProxyError, SSLError

from runonce.settings import CALL_TIMEOUT, address, emulator
from runonce.stores.azure.clients import credential, sdk_client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from xml.etree.ElementTree import Element

    from runonce.settings import StorageConnection

SCOPE = "https://storage.azure.com/.default"
VERSIONS = {"blob": "2021-12-02", "queue": "2021-12-02", "table": "2020-12-06"}
"""Of the REST interface: the first that takes tokens for tables, and one as old for the others."""
AT_ONCE = 1000
"""Connections kept to one service: the Functions host gives a worker as many threads. They are made when needed."""
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


class Reply:
    """An answer, as azure-core's policies and errors look at it."""

    def __init__(self, request: HttpRequest, answer: urllib3.BaseHTTPResponse) -> None:
        self.request = request
        self.status_code = answer.status
        self.reason = answer.reason
        self.headers: Mapping[str, str] = answer.headers
        self.content = answer.data

    def text(self) -> str:
        """Its body."""
        return self.content.decode("utf-8-sig", "replace")


class Connections(HttpTransport[HttpRequest, Reply]):
    """Sends on connections that are kept, of any number of services; those of a forked child are its own."""

    def __init__(self, *, own_machine: bool, connect: float = 3.0, read: float = CALL_TIMEOUT) -> None:
        self._own_machine = own_machine
        self._timeout = urllib3.Timeout(connect=connect, read=read)
        self._pools: dict[str, urllib3.HTTPConnectionPool | urllib3.PoolManager] = {}
        self._process = os.getpid()

    def send(self, request: HttpRequest, **_: Any) -> Reply:
        """Send it and read all of the answer.

        Raises:
            ServiceRequestError, ServiceResponseError: There was none.
        """
        if self._process != os.getpid():
            self._pools, self._process = {}, os.getpid()
        server = "/".join(request.url.split("/", 3)[:3])
        pool = self._pools.get(server) or self._pools.setdefault(server, self._made(server))
        direct = isinstance(pool, urllib3.HTTPConnectionPool)
        try:
            answer = pool.urlopen(
                request.method,
                request.url.removeprefix(server) if direct else request.url,
                body=request.content,
                headers=request.headers,
                retries=False,
                redirect=False,
                timeout=self._timeout,
            )
        except (NewConnectionError, urllib3.exceptions.ConnectTimeoutError, ProxyError, SSLError) as error:
            raise ServiceRequestError(str(error), error=error) from error
        except HTTPError as error:
            raise ServiceResponseError(str(error), error=error) from error
        return Reply(request, answer)

    def _made(self, server: str) -> urllib3.HTTPConnectionPool | urllib3.PoolManager:
        """Connections to a server, by a proxy where there is one: a machine's own emulator is not behind it."""
        environ, address = os.environ, urlsplit(server)
        trusted = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE") or certifi.where()
        tls: dict[str, Any] = {"ca_certs": trusted, "cert_reqs": "CERT_REQUIRED"}
        proxies = {} if self._own_machine or proxy_bypass(address.netloc) else getproxies()
        proxy = proxies.get(address.scheme) or proxies.get("all")
        if proxy is None:
            options = tls if address.scheme == "https" else {}
            return urllib3.connection_from_url(server, maxsize=AT_ONCE, **options)
        if proxy.startswith("socks"):
            from urllib3.contrib.socks import SOCKSProxyManager  # noqa: PLC0415 - wants another package

            return SOCKSProxyManager(proxy, maxsize=AT_ONCE, **tls)
        proxy = proxy if "://" in proxy else f"http://{proxy}"
        who, login = urlsplit(proxy), None
        if who.username is not None:
            said = f"{unquote(who.username)}:{unquote(who.password or '')}"
            login = urllib3.make_headers(proxy_basic_auth=said)
        return urllib3.ProxyManager(proxy, proxy_headers=login, maxsize=AT_ONCE, **tls)

    def open(self) -> None:
        """Nothing: a connection is made when it is needed."""

    def close(self) -> None:
        """Let the connections go."""
        for pool in self._pools.values():
            pool.clear() if isinstance(pool, urllib3.PoolManager) else pool.close()
        self._pools = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
        self._pipeline: Pipeline[HttpRequest, Reply] = Pipeline(transport, [policy])

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
        request = HttpRequest(method, url, headers={**known, **(headers or {})}, content=body)
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


class _Token(BearerTokenCredentialPolicy[HttpRequest, Any]):
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


class _SharedKey(SansIOHTTPPolicy[HttpRequest, Reply]):
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
