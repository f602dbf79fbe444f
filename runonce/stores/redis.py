"""Leases in Redis: a key that expires, with the holder in it. Each step is one script, which nothing comes between.

What Redis cannot promise: an acknowledged write may be lost in a failover, or a key be evicted where the server may
evict; then two hold the lease until the first one's next renewal. The claim in the table decides, not the lease.
"""

from __future__ import annotations

import re
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from runonce.errors import SettingsError, StoreError, StoreUnavailableError
from runonce.settings import CALL_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "runonce-lease:"
DRIFT, LEAST_DRIFT = 10, 2
"""Milliseconds that a key lives longer for each second of its term, and besides: the server's clock may be faster
than the holder's, which counts on the term alone."""
OURS = "local held = redis.call('GET', KEYS[1]) if held and string.sub(held, 1, #ARGV[1]) == ARGV[1] then "
END = " end return 0"
# The value is the holder, a colon, and the key's life in milliseconds.
ACQUIRE = (
    "if not redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2], 'NX', 'PX', ARGV[2]) then "
    "local held = redis.call('GET', KEYS[1]) if string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return 0 end "
    "redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return redis.call('TIME')[1]"
)
RENEW = OURS + "return redis.call('PEXPIRE', KEYS[1], string.sub(held, #ARGV[1] + 1))" + END
RELEASE = OURS + "return redis.call('DEL', KEYS[1])" + END
DISOWN = (
    OURS + "redis.call('SET', KEYS[1], ARGV[2] .. string.sub(held, #ARGV[1] + 1), 'KEEPTTL') return 1" + END
)
REFUSED = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)
"""Which redis-py counts among the connection's errors."""


class RedisLeases:
    """Leases on the server of an address; the keys begin with `PREFIX`.

    Raises:
        SettingsError: The text is no address of Redis.
    """

    def __init__(self, address: str) -> None:
        try:
            self._client: Any = redis.Redis.from_url(
                address,
                socket_connect_timeout=3,
                socket_timeout=CALL_TIMEOUT,
                retry=Retry(NoBackoff(), 0),  # one call is one request
                decode_responses=True,
            )
        except ValueError:  # which may quote part of a password
            raise SettingsError(
                "RUNONCE_LEASES is not an address of Redis: write it as rediss://:password@host:6380/0, with special "
                "characters percent-encoded."
            ) from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def acquire(self, name: str, holder: str, duration: int) -> datetime | None:
        life = duration * (1000 + DRIFT) + LEAST_DRIFT
        at = int(self._run(ACQUIRE, name, f"{holder}:", life))
        return datetime.fromtimestamp(at, UTC) if at else None

    def renew(self, name: str, holder: str) -> bool:
        return bool(self._run(RENEW, name, f"{holder}:"))

    def release(self, name: str, holder: str) -> None:
        self._run(RELEASE, name, f"{holder}:")

    def break_lease(self, name: str, holder: str | None = None) -> bool:
        if holder is not None:
            return bool(self._run(DISOWN, name, f"{holder}:", f"{uuid.uuid4()}:"))
        with _translated(name):
            return bool(self._client.delete(PREFIX + name))

    def held(self, name: str) -> bool:
        with _translated(name):
            return bool(self._client.exists(PREFIX + name))

    def held_in(self, folder: str) -> set[str]:
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", PREFIX + folder) + "*"
        with _translated(folder):
            found = {key.removeprefix(PREFIX) for key in self._client.scan_iter(pattern, count=1000)}
        return {name for name in found if "/" not in name[len(folder) :]}

    def _run(self, script: str, name: str, *values: str | int) -> Any:
        with _translated(name):
            return self._client.eval(script, 1, PREFIX + name, *values)


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except redis.exceptions.RedisError as error:
        said = str(error).strip().partition("\n")[0][:200]
        unknown = isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError)
        if unknown and not isinstance(error, REFUSED):
            raise StoreUnavailableError(f"lease {name}: Redis did not answer ({said}).") from error
        raise StoreError(f"lease {name}: Redis refused ({said}).") from error
