"""The table, the namespace, the clock and the host that rows are read and written with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runonce.clock import Clock
    from runonce.stores.protocols import TableStore


@dataclass(frozen=True, slots=True)
class Registry:
    """Where one host's claims are written, and under which names: the same for all of them."""

    table: TableStore
    namespace: str
    """Prefixes every lock and key; of the runs' table it is the one partition."""
    clock: Clock
    host: str

    def lock_name(self, job: str) -> str:
        """The name everybody competes for who wants to run the job."""
        return lock_name(self.namespace, job)


def lock_name(namespace: str, job: str) -> str:
    """The name of a job's lock, in a namespace."""
    return f"{namespace}/{job}"
