"""`on_failure=` of jobs and handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runonce.execution.hooks import Hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runonce.execution.events import Incident


class OnFailure(Hooks):
    """Calls a job's or handler's own function when a run or message of it has failed for good, or is held."""

    def __init__(self, functions: Mapping[str, Callable[[Incident], object]]) -> None:
        self._functions = functions
        """By job or handler."""

    def on_incident(self, incident: Incident) -> None:
        function = self._functions.get(incident.name)
        if function is not None and incident.kind in ("failed", "held", "dead_lettered"):
            function(incident)
