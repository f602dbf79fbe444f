"""The documentation as a site: built strictly, read without a network, with every option of the decorators."""

from __future__ import annotations

import ast
import html
import inspect
import os
import re
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import runonce
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; a warning fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_each_page_is_built(site: Path) -> None:
    """Each page of docs/ is one of the site; none is left out of the menu, as the strict build would say."""
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {page.stem for page in site.glob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """No page or style sheet asks another server for a script, a font, a style or a picture."""
    asked = [
        found
        for page in site.rglob("*.html")
        for found in re.findall(
            r'<(?:script|img|iframe|link)\b[^>]*(?:src|href)="((?:https?:)?//[^"]+)"', page.read_text("utf-8")
        )
    ]
    asked += [
        found
        for sheet in site.rglob("*.css")
        for found in re.findall(r"url\((https?:[^)]+)\)", sheet.read_text())
    ]
    assert asked == []


@pytest.mark.parametrize("decorator", [runonce.scheduled, runonce.handler], ids=["scheduled", "handler"])
def test_every_option_is_in_the_reference(site: Path, decorator: Callable[..., object]) -> None:
    """The reference has each option of a decorator with what it means and its default."""
    page = (site / "reference.html").read_text(encoding="utf-8")
    table = page[page.index(f'id="runonce.{decorator.__name__}"') :].partition("</table>")[0]
    cells = [
        re.findall(r"<td.*?</td>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)
    ]
    shown = {text[0]: text for row in cells[1:] if (text := [_text(cell) for cell in row])}
    for name, parameter in inspect.signature(decorator).parameters.items():
        _name, _type, meaning, default = shown[name]
        required = parameter.default is parameter.empty
        assert default == "required" if required else literal(default) == parameter.default, name
        assert len(meaning.split()) > 5, f"{name} is not explained"


def _text(cell: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", cell)).strip()


def literal(shown: str) -> object:
    """The value of a default as the page shows it."""
    length = re.fullmatch(r"timedelta\((\w+)=(\d+)\)", shown)
    return timedelta(**{length[1]: int(length[2])}) if length else ast.literal_eval(shown)
