"""Every Python block of README and docs/ is run, as written, against a real storage emulator."""

from __future__ import annotations

import json
import os
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.pages import PAGES, ROOT, Block, blocks
from tests.support.warm import run_python

if TYPE_CHECKING:
    from pathlib import Path

MARKDOWN = [page for page in PAGES if not page.startswith(("servicebus/", "benchmarks/"))]
WITH_PYTHON = [page for page in MARKDOWN if any(block.language == "python" for block in blocks(page))]
BODIES: dict[str, Any] = {
    "send_receipt": {"order": "1001", "customer": "ada"},
    "send_invoice": {"invoice_id": "1001", "customer": "19"},
    "charge_one": {"invoice": "2026-0001"},
    "all_charged": {
        "job": "charge_all",
        "fire_time": "2026-01-01T05:00:00Z",
        "handler": "charge_one",
        "count": 1,
    },
    "index_products": {"sku": "B-7"},
    "ship_order": {"number": "1001", "quantity": 2},
    "place_order": {"order": "1001", "quantity": 2},
}
"""A message for each handler that a page defines."""
INPUTS = {
    "nightly_report": ("orders.csv", "1001,TR\n1002,DE\n"),
    "charge_orders": ("orders.txt", "1001\n1002\n"),
}
"""What a job reads, by its name."""


class Project:
    """A folder as a page's reader would have it: the blocks that name a file are those files."""

    def __init__(self, folder: Path, shown: list[Block], storage: str) -> None:
        self.folder = folder
        self.blocks = [block for block in shown if block.language == "python" and not block.fragment]
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RUNONCE_")},
            "RUNONCE_STORAGE": storage,
            "RUNONCE_NAMESPACE": f"docs-{uuid.uuid4().hex[:8]}",
            "PYTHONPATH": str(ROOT),
        }
        (folder / "jobs").mkdir()
        for block in self.blocks:
            if block.file is not None:
                path = folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")

    def run(self, *arguments: str) -> str:
        """What `python ARGUMENTS` prints in the folder; it has to end with 0."""
        done = run_python([*arguments], self.folder, self.environ)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def runonce(self, *arguments: str) -> Any:
        """A command's JSON."""
        return json.loads(self.run("-m", "runonce", *arguments, "--json"))

    def check(self) -> None:
        """Run what the page shows: its jobs and handlers, its tests, then the blocks that are no file."""
        files = [block.file for block in self.blocks if block.file is not None]
        if any(file.startswith("jobs/") for file in files):
            self._run_jobs()
        tests = [file for file in files if file.startswith("tests/")]
        if tests:
            assert " passed" in self.run(
                "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "runonce_pytest", *tests
            )
        for file in files:
            if not file.startswith(("jobs/", "tests/")):
                self.run(file)
        rest = "\n".join(block.text for block in self.blocks if block.file is None)
        if rest:
            self.run("-W", "error", "-c", rest)

    def _run_jobs(self) -> None:
        listed = self.runonce("list")
        assert listed["broken_files"] == []
        for job in listed["jobs"]:
            if job["name"] in INPUTS:
                name, content = INPUTS[job["name"]]
                (self.folder / name).write_text(content, encoding="utf-8")
                self.run("-m", "runonce", "upload", name)
            assert self.runonce("run", job["name"])["outcome"] == "succeeded"
        for handler in listed["handlers"]:
            name = handler["name"]
            assert name in BODIES, f"give BODIES a message for {name}"
            self.run("-m", "runonce", "enqueue", name, "--body", json.dumps(BODIES[name]))
            assert self.runonce("work", name, "--max-messages", "1")["handled"] == 1
            assert self.runonce("dead-letters", "list", name)["dead_letters"] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_blocks_run_as_written(page: str, tmp_path: Path, azurite: str) -> None:
    """The page's files make a project whose jobs, handlers and tests run; its other blocks run after them."""
    Project(tmp_path, blocks(page), azurite).check()


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_a_fragment_is_at_least_python(page: str) -> None:
    """A block that says it is a fragment can still be parsed."""
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec")


@pytest.mark.parametrize("page", MARKDOWN)
def test_json_blocks_are_json(page: str) -> None:
    """A block of JSON can be parsed."""
    for block in blocks(page):
        if block.language == "json":
            json.loads(block.text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "print(undefined)\n",
        "# jobs/broken.py\nfrom runonce import nothing\n",
        "# tests/test_no.py\ndef test_no():\n    assert False\n",
    ],
)
def test_a_block_that_does_not_run_is_seen(text: str, tmp_path: Path) -> None:
    """A block with an undefined name, a wrong import or a failing test is reported."""
    with pytest.raises(AssertionError, match=r"undefined|nothing|test_no"):
        Project(tmp_path, [Block("page", 1, "python", text)], "UseDevelopmentStorage=true").check()
