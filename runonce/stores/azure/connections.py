"""The connections that the SDK's clients send on: of one process each."""

from __future__ import annotations

import os
from typing import Any

import requests
from azure.core.pipeline.transport import RequestsTransport

AT_ONCE = 1000
"""Connections kept to one service: the Functions host gives a worker as many threads. They are made when needed."""


class OwnConnections(RequestsTransport):  # type: ignore[misc]  # untyped for mypy
    """A forked child sends on connections of its own; on its parent's, each would read answers meant for the other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._process = os.getpid()

    def _init_session(self, session: requests.Session) -> None:
        super()._init_session(session)
        adapters: Any = session.adapters
        for adapter in adapters.values():
            adapter.init_poolmanager(
                connections=10, maxsize=AT_ONCE
            )  # of ten hosts, the library's own number

    def open(self) -> None:  # called before each request
        if self._process != os.getpid():
            self._process = os.getpid()
            self.session = requests.Session()
            self._init_session(self.session)
        super().open()
