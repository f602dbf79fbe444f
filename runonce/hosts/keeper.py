"""The process that renews a lease for a job which holds the interpreter: `python -m runonce.hosts.keeper PAGE`.

What it needs to know comes on its standard input and not on its command line, which every process of the machine can
read. It has none of the job's code.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

from runonce.clock import SystemClock
from runonce.execution.keeper import Keeper, keep
from runonce.execution.lease import Lease

if TYPE_CHECKING:
    from runonce.settings import Settings


def start(settings: Settings, lease: Lease, stall_after: float, let_go: float) -> Keeper:
    """Have a process of its own renew the lease, see `execution.keeper.keep` for the limits."""
    given = pickle.dumps(
        (settings, lease.name, lease.holder, lease.trusted_until, stall_after, let_go, os.getpid())
    )

    def process(page: str) -> subprocess.Popen[bytes]:
        started = subprocess.Popen(  # noqa: S603 - this interpreter, this module
            [sys.executable, "-m", "runonce.hosts.keeper", page],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # a Ctrl-C is for the job, which then closes the pipe
        )
        assert started.stdin is not None  # noqa: S101 - it is a pipe
        started.stdin.write(given)
        started.stdin.flush()
        return started

    return Keeper(process, lease.trusted_until, SystemClock().elapsed())


def main() -> None:
    """Renew what the job's process acquired, until that has ended."""
    from runonce.stores.azure.stores import azure_stores  # noqa: PLC0415 - not for the job's process

    settings, name, holder, trusted_until, *limits = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our parent
    clock = SystemClock()
    lease = Lease(azure_stores(settings).leases, name, settings.lease, clock)
    lease.resume(holder, trusted_until)
    keep(lease, clock, sys.argv[1], *limits)


if __name__ == "__main__":
    main()
