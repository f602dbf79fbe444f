from __future__ import annotations

from datetime import UTC, datetime

from runonce.hosts.discover import discover
from runonce.hosts.functions.app import RECOVERY_SCHEDULE
from runonce.hosts.manifest import RECOVERY_TIMER, make_manifest, to_text
from tests.support.infrastructure import INFRA, ROOT


def test_the_committed_manifest_is_what_the_code_says() -> None:
    """infra/jobs.json is up to date; `runonce manifest` makes it so."""
    found = discover(ROOT / "jobs")
    assert not found.broken
    made = to_text(make_manifest(found, datetime.now(UTC)))
    assert (INFRA / "jobs.json").read_text(encoding="utf-8") == made, "run `python -m runonce manifest`"


def test_the_recovery_timer_is_the_functions_hosts() -> None:
    """What the manifest says of the built-in recovery job is what the Functions host does."""
    assert RECOVERY_TIMER == RECOVERY_SCHEDULE
