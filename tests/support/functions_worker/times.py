"""How long things take on the host, in seconds: the defaults are its own, tests may shorten them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Times:
    """The host's constants that no setting of an app changes."""

    shutdown: float = 10.0
    """From SIGTERM to the worker's SIGKILL, while invocations run."""
    new_worker: float = 0.3
    """From the end of a worker to the start of the next."""
    second_worker: float = 10.0
    """Until each further worker of FUNCTIONS_WORKER_PROCESS_COUNT."""
    timeout_kill: float = 2.0
    """From the report of a functionTimeout to the worker's SIGKILL."""
    storage_patience: float = 25.0
    """Without storage for this long the host ends."""
    hidden: float = 600.0
    """For how long a receive hides a queue message, whatever host.json says."""
    poison_life: float = 7 * 24 * 3600.0
    """Until a copy in the poison queue expires."""
    lock: int = 15
    """The lease of a timer's lock; storage allows no shorter one."""
    lock_renewal: float = 7.5
    lock_recovery: float = 60.0
    """How often an instance looks whether a lock it has not got is free."""
    exits: int = 3
    """Ends of workers within `exits_within` after which the host itself ends."""
    exits_within: float = 300.0
