"""A process that holds a lease, for tests that kill or pause it: `held.py ADDRESS NAME HOLDER SECONDS`."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from runonce.settings import Settings, StorageConnection  # noqa: E402
from runonce.stores.azure.stores import azure_stores  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

NOWHERE = StorageConnection("UseDevelopmentStorage=true")


@contextmanager
def held(address: str, name: str, holder: str, seconds: int) -> Iterator[subprocess.Popen[str]]:
    """Such a process, once it has the lease. A line on its standard input has it renew, and say what came of it."""
    with subprocess.Popen(
        [sys.executable, __file__, address, name, holder, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "True\n"
            yield process
        finally:
            process.kill()


def main(address: str, name: str, holder: str, seconds: str) -> None:
    leases = azure_stores(Settings("shared", NOWHERE, leases=address)).leases
    sys.stdout.write(f"{leases.acquire(name, holder, int(seconds)) is not None}\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        sys.stdout.write(f"{leases.renew(name, holder)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
