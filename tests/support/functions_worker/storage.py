"""The host's own storage: patience while it is away, and leases that are kept."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError

CLIENT = {"retry_total": 0, "connection_timeout": 2, "read_timeout": 10}
"""Options of the host's clients: it tries again itself."""


class StorageAwayError(Exception):
    """Storage did not answer this time."""


class StorageWatch:
    """Carries out calls, and calls `away` once when storage has not answered for long."""

    def __init__(self, patience: float, away: Callable[[], None]) -> None:
        self._patience, self._away = patience, away
        self._since: float | None = None
        self._lock = threading.Lock()

    def attempt(self, call: Callable[[], Any]) -> Any:
        """The call's result; StorageAwayError without an answer. A refusal is an answer, and raised."""
        try:
            result = call()
        except HttpResponseError:
            self._since = None
            raise
        except AzureError as error:
            self._failed()
            raise StorageAwayError(str(error)) from error
        self._since = None
        return result

    def _failed(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._since = self._since or now
            if now - self._since < self._patience:
                return
            self._since = float("inf")  # said once
        self._away()


@contextlib.contextmanager
def kept(every: float, renew: Callable[[], None]) -> Iterator[None]:
    """Call `renew` at intervals while the block runs."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(every):
            renew()

    keeper = threading.Thread(target=keep, name="functions-keep", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
