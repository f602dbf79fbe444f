"""Every link of a page leads to a page of the repository, and to a heading of it where it names one."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import PAGES, ROOT, read


def anchors(text: str) -> set[str]:
    """The anchors that the forge makes of a page's headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Each file a page links to is there, and has the heading that the link names."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            broken.append(target)
    assert broken == []


def test_an_anchor_is_made_as_the_forge_makes_it() -> None:
    """A heading's anchor is lower-case, without punctuation, its spaces as hyphens; comments in code are none."""
    assert anchors("# A job, `twice`\n## host.json\n```\n# not one\n```\n") == {"a-job-twice", "hostjson"}


def test_llms_txt_lists_every_page() -> None:
    """The index for language models has each page of the docs once, and nothing that is not there."""
    listed = re.findall(r"\]\(([^)]+)\)", read("llms.txt"))
    assert sorted(listed) == ["README.md", *sorted(page for page in PAGES if page.startswith("docs/"))]
