"""The design's rules about who may know whom, held by reading the source."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import runonce

ROOT = Path(__file__).resolve().parents[2]

LONGEST = 400


@dataclass(frozen=True)
class Import:
    """One import: of what, and whether it happens when the module is imported."""

    of: str
    at_once: bool
    for_types: bool


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by name, without "runonce."; the facade is ""."""
    found = {}
    for file in sorted((ROOT / "runonce").rglob("*.py")):
        parts = file.relative_to(ROOT / "runonce").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def imports(file: Path) -> list[Import]:
    """What a file imports, wherever in it; `from package import module` counts as the module."""
    found: list[Import] = []

    def visit(node: ast.AST, *, at_once: bool, for_types: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):  # no import is in one
                continue
            typing = for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            now = at_once and not typing and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(child, ast.Import):
                found.extend(Import(name.name, now, typing) for name in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}: a relative import"
                package = str(child.module)
                for name in child.names:
                    inner = f"{package}.{name.name}".removeprefix("runonce.")
                    whole = package.startswith("runonce") and inner in modules()
                    found.append(Import(f"{package}.{name.name}" if whole else package, now, typing))
            visit(child, at_once=now, for_types=typing)

    visit(tree(file), at_once=True, for_types=False)
    return found


def own(file: Path) -> list[tuple[str, Import]]:
    """The modules of ours that a file imports, without "runonce."; the facade is ""."""
    return [
        (found.of.removeprefix("runonce").removeprefix("."), found)
        for found in imports(file)
        if found.of.partition(".")[0] == "runonce"
    ]


@pytest.mark.slow
def test_every_import_goes_down() -> None:
    """The floors, the order within each wing, and who may know Azure are as pyproject.toml says; no circle."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "folder",
    sorted(file.parent for file in (ROOT / "runonce").rglob("__init__.py") if file.parent.name != "runonce"),
    ids=lambda folder: folder.name,
)
def test_a_folder_says_what_lives_there_and_whom_it_knows(folder: Path) -> None:
    """A folder opens with a sentence, then says what may import it and what it may import."""
    opening = ast.get_docstring(tree(folder / "__init__.py")) or ""
    assert re.match(r"[A-Z][^.]*", opening)
    assert "Imported by" in opening
    assert "imports" in opening


@pytest.mark.parametrize("file", sorted((ROOT / "jobs").glob("*.py")), ids=lambda file: file.name)
def test_a_job_knows_only_the_facade(file: Path) -> None:
    """A job file imports `runonce` itself and nothing from inside it, nor a module of Azure's."""
    names = {found.of for found in imports(file)}
    assert {name for name in names if name.startswith("runonce")} <= {"runonce"}
    others = {name.partition(".")[0] for name in names} - {"runonce", "jobs"}
    assert others <= set(sys.stdlib_module_names)


def test_the_functions_app_knows_only_its_host() -> None:
    """function_app.py hands the jobs to the Functions host and imports nothing else of the toolkit."""
    assert {name for name, _ in own(ROOT / "function_app.py")} == {"hosts.functions"}


@pytest.mark.slow
def test_nothing_inside_uses_the_facade() -> None:
    """Inside the toolkit modules import each other by name: the facade is for jobs and for those who run them."""
    wrong = [name for name, file in modules().items() for of, _ in own(file) if of == ""]
    assert wrong == []


@pytest.mark.slow
def test_no_two_modules_need_each_other() -> None:
    """Imports at import time have no circle, so that any module can be imported first."""
    graph = {
        name: {of for of, found in own(file) if found.at_once and of and of != name}
        for name, file in modules().items()
    }
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path[path.index(name) :], name))
        if name not in done:
            for of in sorted(graph.get(name, ())):
                walk(of, (*path, name))
            done.add(name)

    for name in graph:
        walk(name, ())


@cache
def classes(file: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree(file)) if isinstance(node, ast.ClassDef)]


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.slow
def test_a_protocol_is_small() -> None:
    """No protocol has more than five methods, and each says what it does."""
    protocols = {
        f"{name}.{node.name}": node
        for name, file in modules().items()
        for node in classes(file)
        if any(getattr(getattr(base, "value", base), "id", "") == "Protocol" for base in node.bases)
    }
    assert len(protocols) >= 5
    assert {name: len(methods(node)) for name, node in protocols.items() if len(methods(node)) > 5} == {}
    silent = [
        f"{name}.{method.name}"
        for name, node in protocols.items()
        for method in (node, *methods(node))
        if not ast.get_docstring(method)
    ]
    assert silent == []


@pytest.mark.parametrize("name", modules(), ids=lambda name: name or "runonce")
def test_a_module_is_short(name: str) -> None:
    """No module is longer than a person reads in one go."""
    assert len(modules()[name].read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_a_module_says_what_it_is_for() -> None:
    """Every module opens with a sentence."""
    assert [name for name, file in modules().items() if not ast.get_docstring(tree(file))] == []


def test_public_names_are_explained() -> None:
    """Every public class, and every public function longer than a line or two, has a docstring."""
    silent = [
        f"{name}.{node.name}"
        for name, file in modules().items()
        for node in tree(file).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
        and (isinstance(node, ast.ClassDef) or len(node.body) > 1)
    ]
    assert silent == []


def test_what_jobs_see_is_explained_completely() -> None:
    """Of what the facade hands out, every public method and attribute of a class says what it is."""
    silent = []
    for kind in (runonce.Run, runonce.Message):
        file = Path(sys.modules[kind.__module__].__file__ or "")
        for node in classes(file):
            if not node.name.startswith("_"):
                silent += [
                    f"{node.name}.{method.name}"
                    for method in methods(node)
                    if not method.name.startswith("_") and not ast.get_docstring(method)
                ]
    assert silent == []


def test_the_facade_is_complete_and_sorted() -> None:
    """`runonce.__all__` names exactly what `runonce` imports, in order, and each name is there."""
    imported = [
        alias.asname or alias.name
        for node in tree(modules()[""]).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(imported) == runonce.__all__
    assert sorted(set(runonce.__all__)) == runonce.__all__
    assert [name for name in runonce.__all__ if not hasattr(runonce, name)] == []
    assert len(runonce.__all__) < 20


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that a fresh Python has after `import runonce`."""
    code = "import sys, json, runonce; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    return set(json.loads(answer.stdout))


@pytest.mark.slow
@pytest.mark.parametrize(
    "package", ["azure", "croniter", "dateutil", "opentelemetry", "rich", "typer", "requests"]
)
def test_importing_the_facade_is_cheap(loaded: set[str], package: str) -> None:
    """`import runonce`, which every job file does, brings in nothing that only some of them need."""
    assert sorted(name for name in loaded if name == package or name.startswith(f"{package}.")) == []


@pytest.mark.slow
def test_the_picture_is_of_this_code() -> None:
    """docs/architecture.svg is what its script draws; `python docs/draw_architecture.py` draws it anew."""
    script = [sys.executable, "docs/draw_architecture.py", "--check"]
    assert subprocess.run(script, cwd=ROOT, check=False, timeout=60).returncode == 0
