"""Requests to a server that a proxy is before, by urllib3, which is imported where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import urllib3
from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProxyError, SSLError

from runonce.stores.azure.kept import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping

AT_ONCE = 1000
"""Connections kept to one service: the Functions host gives a worker as many threads. They are made when needed."""


class ByProxy:
    """As `Kept`, by a proxy."""

    def __init__(self, server: str, proxy: str, connect: float, read: float, trusted: str) -> None:
        self._server = server
        self._timeout = urllib3.Timeout(connect=connect, read=read)
        self._pools = _pools(proxy, {"ca_certs": trusted, "cert_reqs": "CERT_REQUIRED"})

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """As that of `Kept`."""
        try:
            answer = self._pools.urlopen(
                method,
                self._server + target,
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=self._timeout,
            )
        except (NewConnectionError, ConnectTimeoutError, ProxyError, SSLError) as error:
            raise ServiceRequestError(str(error), error=error) from error
        except HTTPError as error:
            raise ServiceResponseError(str(error), error=error) from error
        return Answer(answer.status, answer.reason or "", answer.headers, answer.data)

    def close(self) -> None:
        """Let the connections go."""
        self._pools.clear()


def _pools(proxy: str, tls: dict[str, Any]) -> urllib3.PoolManager:
    if proxy.startswith("socks"):
        from urllib3.contrib.socks import SOCKSProxyManager  # noqa: PLC0415 - wants another package

        return SOCKSProxyManager(proxy, maxsize=AT_ONCE, **tls)
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    who, login = urlsplit(proxy), None
    if who.username is not None:
        said = f"{unquote(who.username)}:{unquote(who.password or '')}"
        login = urllib3.make_headers(proxy_basic_auth=said)
    return urllib3.ProxyManager(proxy, proxy_headers=login, maxsize=AT_ONCE, **tls)
