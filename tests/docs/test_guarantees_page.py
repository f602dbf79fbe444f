"""Each guarantee names tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import ROOT, read

ROWS = [
    line
    for line in read("docs/guarantees.md").splitlines()
    if line.startswith("| ") and not line.startswith("| what goes wrong")
]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_names_tests_that_exist(row: str) -> None:
    """The last cell names one test or more, each defined in the file it names."""
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row.split("|")[-2])
    assert named
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {test}"
