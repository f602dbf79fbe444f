"""What a job may use is the same on every host: `jobs/` with all that is in it, and the packages the project lists.

The programs that pack it have rules of their own: azd, which for Functions reads an ignore file nearly as Git does,
`func pack` and Docker. The same project is packed by each, and compared.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pathspec
import pytest

from tests.support.image import copied
from tests.support.infrastructure import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

USED = (
    "jobs/report.py",
    "jobs/_shared.py",
    "jobs/data/rates.json",
    "jobs/templates/invoice.md",
    "jobs/README.md",
    "jobs/docs/terms.txt",
    "jobs/tests/sample.csv",
    "jobs/infra/__init__.py",
    "jobs/servicebus/helper.py",
    "jobs/azurite/notes.txt",
    "jobs/dev.py",
    "jobs/build/plan.json",
    "jobs/.hidden/key.txt",
    "jobs/azure.yaml",
    "jobs/venv/x.txt",
    "jobs/Dockerfile",
    "runonce/__init__.py",
    "runonce/messages/tests.md",
    "shop/__init__.py",
    "shop/prices/table.md",
)
"""What jobs use: names that the project's own folders and files have too, where a rule could mistake them."""
UNUSED = (
    ".env",
    ".git/config",
    ".azure/shop/.env",
    "local.settings.json",
    "jobs/local.settings.json",
    "venv/bin/python",
    ".venv/bin/python",
    "node_modules/x/index.js",
    "build/lib/x.py",
    "runonce.egg-info/PKG-INFO",
    "__azurite_db_blob__.json",
    "debug.log",
    ".coverage",
    "htmlcov/index.html",
    "tests/conftest.py",
    "infra/main.bicep",
    "docs/deploy.md",
    "README.md",
    "pyproject.toml",
    "unlisted/__init__.py",
    "dev.py",
)
OF_THE_HOST = ("function_app.py", "host.json")
INSTALLED = ("requirements.txt", "constraints.txt")


def by_git(folder: Path) -> set[str]:
    """What Git would not ignore: what is in a folder that it ignores, it does not look at."""
    rules = pathspec.GitIgnoreSpec.from_lines((folder / ".funcignore").read_text().splitlines())

    def seen(path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:n]) + "/" for n in range(1, len(parts))]
        return not any(rules.match_file(one) for one in (*above, path))

    return set(filter(seen, every(folder)))


def by_azd(folder: Path) -> set[str]:
    """What azd puts into the zip for Functions. Its library differs from Git where a pattern has no inner slash.

    The star of such a pattern that begins with a slash goes through folders, and a folder that is kept does not keep
    what is in it. It may be asked about the folder itself, as ".".
    """
    patterns = [line for line in (folder / ".funcignore").read_text().splitlines() if line and line[0] != "#"]

    def ignored(path: str, *, is_folder: bool) -> bool:
        for pattern in reversed(patterns):
            body = pattern.removeprefix("!")
            if body.endswith("/") and not is_folder:
                continue
            if azd_matches(body.removesuffix("/"), path):
                return not pattern.startswith("!")
        return False

    def walk(inside: Path) -> Iterator[str]:
        path = inside.relative_to(folder).as_posix()
        if ignored(path, is_folder=inside.is_dir()):
            return
        if inside.is_dir():
            for child in inside.iterdir():
                yield from walk(child)
        else:
            yield path

    return set(walk(folder))


def azd_matches(pattern: str, path: str) -> bool:
    """Whether a pattern, without what negates it and a last slash, is that of a path."""
    anchored, body = pattern.startswith("/"), pattern.removeprefix("/")
    if "/" not in body:
        return fnmatch.fnmatchcase(path if anchored else path.rpartition("/")[2], body)
    parts, wanted = path.split("/"), body.split("/")
    if not anchored and "**" not in wanted:
        parts = parts[-len(wanted) :]
    elif not anchored:
        wanted = ["**", *wanted]
    return _parts_match(parts, wanted)


def _parts_match(parts: list[str], wanted: list[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return _parts_match(parts, wanted[1:]) or (bool(parts) and _parts_match(parts[1:], wanted))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], wanted[0]) and _parts_match(parts[1:], wanted[1:])


def by_func(folder: Path) -> set[str]:
    """What `func pack` takes: a pattern is the beginning of a path, one with a "!" beats the others, some never go."""
    lines = [line.strip() for line in (folder / ".funcignore").read_text().splitlines()]
    patterns = [line for line in lines if line and not line.startswith("#")]

    def matches(path: str, *, kept: bool) -> bool:
        chosen = [p.removeprefix("!").removeprefix("/") for p in patterns if p.startswith("!") is kept]
        regexes = (re.escape(p).replace(r"\*\*", ".+").replace(r"\*", "[^/]+") for p in chosen)
        return any(re.match(regex, path) for regex in regexes)

    never = {".git", ".vscode", ".funcignore", ".gitignore", "local.settings.json", "project.lock.json"}
    return {
        path
        for path in every(folder)
        if not never & set(path.split("/")) and (matches(path, kept=True) or not matches(path, kept=False))
    }


def by_docker(folder: Path) -> set[str]:
    """What `COPY . .` puts into the image."""
    return {file.relative_to(folder).as_posix() for file in copied(folder, folder)}


def every(folder: Path) -> Iterator[str]:
    return (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project with a package of its own beside jobs/, which is listed as the documentation says."""
    folder = tmp_path / "project"
    for path in (*USED, *UNUSED, *OF_THE_HOST, *INSTALLED):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    for name in (".funcignore", ".dockerignore", "Dockerfile", "pyproject.toml"):
        shutil.copyfile(ROOT / name, folder / name)
    lists(folder, "shop")
    return folder


def lists(folder: Path, package: str) -> None:
    replace(folder / "pyproject.toml", 'include = ["runonce*"]', f'include = ["runonce*", "{package}*"]')
    replace(folder / ".funcignore", "!/jobs/\n", f"!/jobs/\n!/{package}/\n!/{package}/**\n")
    replace(folder / ".dockerignore", "!jobs\n", f"!jobs\n!{package}\n")


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_three_packages_have_the_same_files(project: Path) -> None:
    """Whatever lies in jobs/ or a listed package goes to each host, and nothing else but what the host itself needs."""
    image = by_docker(project)
    assert image == {*USED, *INSTALLED}
    assert by_azd(project) == by_git(project) == by_func(project) == {*image, *OF_THE_HOST}


@pytest.mark.parametrize(("line", "drops"), [("!/jobs/**", "jobs/data/rates.json"), ("!/./", "host.json")])
def test_each_line_is_needed(project: Path, line: str, drops: str) -> None:
    """Without the line for what is in a folder, or that for the whole, azd would drop files that Git keeps."""
    replace(project / ".funcignore", f"{line}\n", "")
    assert drops not in by_azd(project)
    assert drops in by_git(project)


@pytest.mark.parametrize("pattern", ["*.md", "docs/", "dev.py", "build/", "jobs/data/"])
def test_a_rule_that_drops_a_jobs_file_is_found(project: Path, pattern: str) -> None:
    """A pattern that reaches into jobs/ makes the packages differ, so that the comparison means something."""
    with (project / ".funcignore").open("a") as file:
        file.write(f"{pattern}\n")
    assert by_azd(project) != {*by_docker(project), *OF_THE_HOST}


def test_bytecode_stays_out(project: Path) -> None:
    """What Python compiled on this machine is of no use on another."""
    cache = project / "jobs" / "__pycache__"
    cache.mkdir()
    (cache / "report.cpython-311.pyc").write_text("")
    assert not any("__pycache__" in path for path in by_azd(project) | by_git(project) | by_docker(project))


def test_the_image_copies_what_the_list_names() -> None:
    """The Dockerfile has no list of its own."""
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^COPY (.*)$", text, re.MULTILINE) == ["requirements.txt constraints.txt ./", ". ."]


# -- the check before provisioning -----------------------------------------------------------------------------


def test_a_project_that_lists_what_its_jobs_use_passes(project: Path, check: ModuleType) -> None:
    """A package that is listed everywhere may be imported by a job."""
    (project / "jobs" / "report.py").write_text(
        "import json\nfrom shop.prices import table\nimport _shared\n"
    )
    check.ROOT = project
    assert check.packed() == []


@pytest.mark.parametrize("line", ["import unlisted", "from unlisted.parts import one", "import dev"])
def test_a_job_that_uses_what_no_host_gets_is_refused(project: Path, check: ModuleType, line: str) -> None:
    """A module beside jobs/ that works on a laptop and is packed for no host is named, with what to do."""
    (project / "jobs" / "report.py").write_text(f"def run():\n    {line}\n")
    check.ROOT = project
    (said,) = check.packed()
    assert "jobs/report.py" in said
    assert f"!/{line.split()[1].partition('.')[0]}/" in said


@pytest.mark.parametrize("file", [".funcignore", ".dockerignore", "pyproject.toml"])
def test_a_package_listed_in_one_place_only_is_refused(project: Path, check: ModuleType, file: str) -> None:
    """A package that one of the three files forgets would be missing on one host: the file is named."""
    replace(
        project / file,
        ', "shop*"' if file.endswith("toml") else "!/shop/\n" if file == ".funcignore" else "!shop\n",
        "",
    )
    check.ROOT = project
    assert any(file in said and "shop" in said for said in check.packed())


@pytest.mark.parametrize("file", [".funcignore", ".dockerignore", "pyproject.toml"])
def test_a_list_that_is_not_there_is_named(project: Path, check: ModuleType, file: str) -> None:
    """Where one of the three files is gone, the check says what it does not name, and does not fall over."""
    (project / file).unlink()
    check.ROOT = project
    assert any(said.startswith(f"{file} does not name the package runonce") for said in check.packed())


def test_a_project_file_that_is_no_toml_is_named(project: Path, check: ModuleType) -> None:
    """A pyproject.toml with a mistake is said to be the matter, with its place."""
    (project / "pyproject.toml").write_text("[tool\n")
    check.ROOT = project
    (said,) = check.packed()
    assert said.startswith("pyproject.toml is not readable")


def test_the_shipped_project_passes() -> None:
    """The check finds nothing wrong with the files as they are."""
    code = "import sys; sys.path.insert(0, 'infra/hooks'); import check; print(check.packed())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
