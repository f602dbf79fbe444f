from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runonce.hosts.discover import discover
from runonce.hosts.manifest import make_manifest, to_text
from runonce.hosts.purge import NAME as PURGE
from tests.support.infrastructure import INFRA, ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_the_committed_manifest_is_what_the_code_says() -> None:
    """infra/jobs.json is up to date; `runonce manifest` makes it so."""
    found = discover(ROOT / "jobs")
    assert not found.broken
    made = to_text(make_manifest(found, datetime.now(UTC)))
    assert (INFRA / "jobs.json").read_text(encoding="utf-8") == made, "run `python -m runonce manifest`"


def timers(**environ: str) -> dict[str, str]:
    """Each timer that the Function app registers, by its function's name."""
    code = (
        "import json; from function_app import app;"
        "print(json.dumps({f.get_function_name(): f.get_trigger().schedule for f in app.get_functions()"
        " if hasattr(f.get_trigger(), 'schedule')}))"
    )
    env = {
        **os.environ,
        "RUNONCE_STORAGE": "UseDevelopmentStorage=true",
        "RUNONCE_NAMESPACE": "shop-test",
        **environ,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_timer_of_the_manifest_is_the_functions_hosts() -> None:
    """What the manifest says of the timers, recovery's among them, is what the Function app registers."""
    made = timers()
    manifest = json.loads((INFRA / "jobs.json").read_text(encoding="utf-8"))
    entries = {e["name"]: e["functions_timer"] for e in (*manifest["jobs"], manifest["recovery"])}
    # The toolkit's own purge needs no execution of its own on Container Apps: recovery's makes up for it there.
    assert made == {**entries, PURGE: made[PURGE]}


def test_a_timer_has_the_schedule_of_its_setting(tmp_path: Path) -> None:
    """The Function app registers what the setting says when it starts, in UTC, and the default without it."""
    (tmp_path / "report.py").write_text(
        "from runonce import Run, scheduled\n"
        '@scheduled("%NIGHTLY_SCHEDULE%", default="0 0 3 * * *", time_zone="Europe/Istanbul")\n'
        "def report(run: Run) -> None: ...\n"
    )
    for value, timer in (("", "0 0 0 * * *"), ("0 30 4 * * *", "0 30 1 * * *")):
        assert timers(RUNONCE_JOBS=str(tmp_path), NIGHTLY_SCHEDULE=value)["report"] == timer
