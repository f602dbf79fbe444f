"""A signal to stop that comes before this process can stop well ends it at once: nothing has begun.

Imported before everything else, and by itself, by `python -m runonce` and `runonce`. As process 1 of a container a
SIGTERM without a handler is dropped by the kernel; the work would then begin, and be killed half a minute later.
Where work is done, `runonce.hosts.signals` takes over. The image starts Python with SIGTERM blocked (see the
Dockerfile), so that one which comes before this line waits for it.
"""

import os
import signal
import sys
from typing import NoReturn

STARTED_AS = ("-m", "runonce", "runonce.exe")
"""What `sys.argv[0]` is while `python -m runonce` looks for the package, and in the installed command."""


def _end(number: int, _frame: object) -> NoReturn:
    os._exit(128 + number)


if os.path.basename("".join(sys.argv[:1])) in STARTED_AS:  # noqa: PTH119 - pathlib takes as long as all the rest
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)  # any other process ends by itself
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
