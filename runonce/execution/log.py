"""Logs that a host can attribute: every line of a run names it, and helper threads keep the invocation.

The Functions host drops a user's log line that carries no invocation id. The worker finds the id in a context
variable (Python 3.13 and later) or in a thread-local (before), so a thread of ours takes both along.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Puts job, fire time and attempt before each message, and in `extra` for structured handlers."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            prefix = f"[{(self.extra or {})['run']}] "
            # With arguments, logging formats the text; a percent sign in a message's id is no placeholder.
            text = (prefix.replace("%", "%%") if args else prefix) + str(msg)
            _, options = self.process(msg, kwargs)
            options["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller's line, not this one
            self.logger.log(level, text, *args, **options)


def run_logger(job: str, what: str, attempt: int, **more: str) -> RunLogger:
    """The logger a run is handed, `runonce.jobs.<job>`; `what` is its fire time or message."""
    extra = {"run": f"{job} {what} #{attempt}", "job": job, "attempt": attempt, **more}
    return RunLogger(logging.getLogger(f"runonce.jobs.{job}"), extra)


def user_name() -> str:
    """Who a person at this machine is: the name of the system's user, or where there is none, of the process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # an id without a name, as in many containers
        return host_name()


def host_name() -> str:
    """What a person recognises this process by; it decides nothing (holders are UUIDs)."""
    site = os.environ.get("WEBSITE_SITE_NAME") or os.environ.get("CONTAINER_APP_JOB_NAME")
    instance = os.environ.get("WEBSITE_INSTANCE_ID") or os.environ.get("CONTAINER_APP_REPLICA_NAME") or ""
    return f"{site}/{instance[:12]}" if site else f"{socket.gethostname()}:{os.getpid()}"
