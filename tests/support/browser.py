"""A real browser for tests of pages: Debian's Chromium, without a window."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
HINT = "no Chromium here: apt-get install chromium"


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser; without one the test is skipped with the remedy, and fails in CI."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(HINT, pytrace=False)
        pytest.skip(HINT)
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - each test process collects its users

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield made
        finally:
            made.close()
