"""What was looked at, and what is amiss with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Area = Literal[
    "settings",
    "job files",
    "schedules",
    "host.json",
    "infra/jobs.json",
    "storage",
    "namespace",
    "queues",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something amiss: what, with its value and whose it is, and the remedy."""

    text: str
    must_mend: bool = True
    """Or it may be meant so."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    area: Area
    what: str
    findings: tuple[Finding, ...] = ()

    @property
    def must_mend(self) -> bool:
        """Whether any of it has to be mended."""
        return any(one.must_mend for one in self.findings)

    @property
    def state(self) -> Literal["well", "note", "mend"]:
        """The worst of its findings."""
        return "mend" if self.must_mend else "note" if self.findings else "well"
