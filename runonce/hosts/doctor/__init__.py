"""The doctor: tries everything that runs need, and names what is amiss, each with its remedy.

`project` holds the folder and the environment against each other; `reached` tries storage and broker.

Imported by the command line; imports the runtime, the facts, the Functions host's own checks and both wings.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from runonce.errors import RunonceError, SettingsError
from runonce.hosts.discover import Discovered
from runonce.hosts.doctor import project, reached
from runonce.hosts.doctor.findings import Check, Finding

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.hosts.runtime import Runtime

__all__ = ["Check", "Finding", "examine"]


def examine(runtime: Runtime, root: Path, *, offline: bool = False) -> list[Check]:
    """Look at everything; what cannot be looked at is a finding, and the rest is looked at all the same.

    Args:
        runtime: Its settings, jobs, storage and broker.
        root: The project's folder, with host.json and infra/.
        offline: Only at what is in that folder and in the environment: nothing is sent anywhere.
    """
    checks = [project.settings(runtime)]
    known = None
    with suppress(RunonceError):  # which is among those of the settings
        known = runtime.settings
    try:
        found = runtime.found
        checks.append(project.files(found))
    except SettingsError as error:
        found = Discovered()
        checks.append(Check("job files", "the folder", (Finding(str(error)),)))
    at = project.Project(root, runtime.environ, found, known, runtime.clock.now())
    checks += project.checks(at)
    if known is not None and not offline:
        checks += reached.checks(runtime, known, found)
    return checks
