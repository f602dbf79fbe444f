"""The Functions host: `build` makes the app that function_app.py hands to the worker.

`idempotent` is for that file's own functions of HTTP requests. Imported by function_app.py alone; imports the runtime
and both wings. `build` loads `azure.functions` when it is called, for the check of host.json is used where that package
is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runonce.errors import MissingExtraError
from runonce.hosts.functions.idempotent import idempotent

if TYPE_CHECKING:
    from pathlib import Path

    import azure.functions as func

__all__ = ["build", "idempotent"]


def build(root: Path) -> func.FunctionApp:
    """The app with everything the jobs folder needs. To be called once, while function_app.py is imported.

    Args:
        root: The folder of function_app.py, which a relative RUNONCE_JOBS is below. The current directory will not
            do: a worker that was waiting as a placeholder imports the app before it changes to its folder.

    Raises:
        MissingExtraError: `azure.functions` is not installed.
        SettingsError: A setting is missing or wrong. The app does not start, and says why.
    """
    try:
        from runonce.hosts.functions.app import make_app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "azure.functions":
            raise
        raise MissingExtraError("The Functions host", "functions") from error

    return make_app(root)
