"""Experiments: real processes on a real Azurite are doubled, killed and paused, and their effects counted.

Effects are counted in a file that the toolkit knows nothing of. What a lock alone does, or no lock, is shown by
small loops in here; the toolkit has no switch to turn a part of it off.
"""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {
    "no-lock": "what happens without any lock: each replica runs each fire time",
    "lease-and-claim": "three replicas of the local host: each fire time takes effect once",
    "late-replica": "why a lease alone is not enough for a job that is over before a late replica comes",
    "kill-9": "kill -9 in the middle of an invoice run: taken over, resumed, every invoice charged once",
    "pause": "a replica that wakes up after its lease has ended: what it still writes is refused",
    "sigterm": "a polite stop: the lease is released at once and another replica goes on",
    "duplicates": "every message delivered five times to three workers: each has one effect",
    "poison": "a message that cannot be handled: put aside with its reason, replayed once it can be",
}
"""Name → what it shows, in the order of the table."""
ALONE: dict[str, str] = {
    "locks": "leases in blobs, PostgreSQL and Redis, a leader, and none: a holder is killed, one is paused",
    "takeover": "how soon another replica goes on after kill -9 and SIGTERM, with leases of 45 and 15 s",
}
"""Experiments that take a minute, and are not among `all`."""
