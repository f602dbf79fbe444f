"""The jobs folder is a package of its own name, here and in child processes."""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

import pytest

from runonce.errors import SettingsError
from runonce.hosts.discover import discover
from tests.support.job_files import job_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOB = "from runonce import scheduled\n\n@scheduled('0 0 3 * * *')\ndef {}(run): ...\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with job_files(tmp_path / "jobs") as jobs:
        yield jobs


def write(folder: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source, encoding="utf-8")


def test_jobs_of_sub_folders_are_found(folder: Path) -> None:
    """A file of a sub-folder, and a package's own file, are job files like the others; "_" hides a whole folder."""
    write(
        folder,
        {
            "top.py": JOB.format("top"),
            "billing/dunning.py": JOB.format("dunning"),
            "billing/deep/down.py": "from .._x import y\n" + JOB.format("down"),
            "billing/_x.py": "y = 1",
            "pack/__init__.py": JOB.format("packed"),
            "_tests/test_top.py": "1/0",
            ".hidden/a.py": "1/0",
            "data/a.txt": "no Python",
        },
    )
    found = discover(folder)
    assert found.broken == []
    assert {name: file.as_posix() for name, file in found.files.items()} == {
        "top": "top.py",
        "dunning": "billing/dunning.py",
        "down": "billing/deep/down.py",
        "packed": "pack/__init__.py",
    }


@pytest.mark.parametrize(
    "line", ["from ._x import y", "from jobs._x import y", "import jobs._x", "from jobs import _x"]
)
@pytest.mark.parametrize("package", [False, True], ids=["folder", "package"])
def test_a_helper_is_imported_as_in_any_package(folder: Path, line: str, *, package: bool) -> None:
    """Relative and absolute imports of a helper work, with and without an __init__.py."""
    write(folder, {"_x.py": "y = 1", "a.py": f"{line}\n" + JOB.format("a")})
    if package:
        write(folder, {"__init__.py": '"""Jobs."""\n'})
    found = discover(folder)
    assert found.broken == []
    assert list(found.jobs) == ["a"]
    assert found.jobs["a"].body.__module__ == "jobs.a"


@pytest.mark.parametrize("line", ["from _x import y", "import _x", "import shared.more"])
def test_a_helper_imported_as_if_it_lay_beside_the_folder_is_told_with_the_remedy(
    folder: Path, line: str
) -> None:
    """`from _x import y` names the file, the module, and the line to write instead."""
    write(folder, {"_x.py": "y = 1", "shared/more.py": "z = 1", "a.py": f"\n{line}\n"})
    (error,) = discover(folder).broken
    module = "shared" if "shared" in line else "_x"
    assert f"a.py, line 2 could not be imported: ModuleNotFoundError: No module named '{module}'" in str(
        error
    )
    assert f"`from jobs.{module} import …`" in str(error)


def test_what_a_job_file_defines_can_be_pickled(folder: Path) -> None:
    """Functions, classes and their instances come back from a pickle as themselves."""
    write(folder, {"a.py": "def work(x): return x\n\nclass Order:\n    n = 1\n" + JOB.format("a")})
    discover(folder)
    module = sys.modules["jobs.a"]
    assert pickle.loads(pickle.dumps(module.work)) is module.work
    assert type(pickle.loads(pickle.dumps(module.Order()))) is module.Order


def test_names_that_are_no_identifiers_work(tmp_path: Path) -> None:
    """A folder or a file with a hyphen or a blank in its name is found, and imports its helpers relatively."""
    with job_files(tmp_path / "nightly jobs") as folder:
        write(
            folder,
            {
                "a-file.py": "from ._x import y\n" + JOB.format("a"),
                "_x.py": "y = 1",
                "class.py": JOB.format("b"),
            },
        )
        found = discover(folder)
        assert found.broken == []
        assert sorted(found.jobs) == ["a", "b"]


def test_a_file_with_a_dot_in_its_name_is_told(folder: Path) -> None:
    """`report.v2.py` cannot be a module: the file is named with the remedy, and the others are there."""
    write(folder, {"report.v2.py": JOB.format("a"), "v1.2/b.py": JOB.format("b"), "c.py": JOB.format("c")})
    found = discover(folder)
    assert list(found.jobs) == ["c"]
    assert [str(error).partition(":")[0] for error in found.broken] == ["report.v2.py", "v1.2/b.py"]
    assert all("rename it" in str(error) for error in found.broken)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("jobs.v2", "has a dot in it"),
        ("json", "Python's own module"),
        ("runonce", "the toolkit's own module"),
        ("pytest", "site-packages"),
        ("azure", "site-packages"),
    ],
)
@pytest.mark.parametrize("package", [False, True], ids=["folder", "package"])
def test_a_folder_whose_name_is_taken_is_refused(
    tmp_path: Path, name: str, reason: str, *, package: bool
) -> None:
    """A jobs folder called like a module that others need is one error with its path, the reason and the remedy."""
    with job_files(tmp_path / name, a=JOB.format("a")) as folder:
        if package:
            write(folder, {"__init__.py": ""})
        with pytest.raises(SettingsError) as refused:
            discover(folder)
    assert str(folder) in str(refused.value)
    assert reason in str(refused.value)
    assert "RUNONCE_JOBS" in str(refused.value)


def test_a_module_of_the_folders_name_elsewhere_is_told(tmp_path: Path, folder: Path) -> None:
    """Where child processes would import another `jobs`, that is refused; a folder with an __init__.py comes first."""
    write(tmp_path / "elsewhere", {"jobs/__init__.py": "WRONG = True"})
    write(folder, {"a.py": JOB.format("a")})
    sys.path.insert(0, str(tmp_path / "elsewhere"))
    with pytest.raises(SettingsError) as refused:
        discover(folder)
    assert str(tmp_path / "elsewhere" / "jobs") in str(refused.value)
    assert "__init__.py" in str(refused.value)
    write(folder, {"__init__.py": ""})
    assert list(discover(folder).jobs) == ["a"]


def test_two_folders_of_one_name_take_turns(tmp_path: Path) -> None:
    """Each discovery finds the files and helpers of its own folder."""
    for _ in range(2):
        for place in ("one", "two"):
            with job_files(tmp_path) as base:
                write(
                    base / place / "jobs",
                    {"a.py": "from jobs._x import y\n" + JOB.format(place), "_x.py": "y = 1"},
                )
                write(base / place / "jobs", {f"_only_{place}.py": ""})
                found = discover(base / place / "jobs")
                assert found.broken == []
                assert list(found.jobs) == [place]


def test_a_folder_is_named_by_its_link(tmp_path: Path) -> None:
    """A link to a folder is a package of the link's name, as Python sees it."""
    write(tmp_path, {"store/v1.2/a.py": JOB.format("a")})
    with job_files(tmp_path):
        (tmp_path / "jobs").symlink_to(tmp_path / "store" / "v1.2")
        found = discover(tmp_path / "jobs")
    assert found.jobs["a"].body.__module__ == "jobs.a"


def test_a_file_hidden_by_a_package_of_its_name_is_told(folder: Path) -> None:
    """`billing.py` beside the package `billing/` is never imported by Python, so it is named."""
    write(folder, {"billing.py": JOB.format("a"), "billing/__init__.py": JOB.format("b")})
    found = discover(folder)
    assert list(found.jobs) == ["b"]
    assert "billing.py: `import jobs.billing` means" in str(found.broken[0])
    assert "rename one of the two" in str(found.broken[0])


FAILURES = {
    "SystemExit": "raise SystemExit",
    "exit code": "import sys; sys.exit(3)",
    "GeneratorExit": "raise GeneratorExit",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "a BaseException of one's own": "class Mine(BaseException): ...\nraise Mine('of mine')",
    "an error that cannot be told": "class Mute(Exception):\n    def __str__(self): 1/0\nraise Mute",
    "RecursionError": "def again(): again()\nagain()",
    "SyntaxError": "def (",
    "null bytes": "x = 1\0",
    "asyncio.CancelledError": "import asyncio\nraise asyncio.CancelledError",
    "ExceptionGroup": "raise BaseExceptionGroup('two', [SystemExit()])",
    "removed from sys.modules": "import sys\ndel sys.modules[__name__]\n1/0",
}


@pytest.mark.parametrize("source", FAILURES.values(), ids=FAILURES)
def test_a_file_that_fails_to_import_takes_no_other_down(folder: Path, source: str) -> None:
    """Whatever a file raises, it is named and the others' jobs are there."""
    write(folder, {"bad.py": source, "a.py": JOB.format("a"), "z.py": JOB.format("z")})
    found = discover(folder)
    assert sorted(found.jobs) == ["a", "z"]
    (error,) = found.broken
    assert str(error).startswith("bad.py")
    assert "the other files' jobs run" in str(error)
    assert ": ." not in str(error)
    assert "jobs.bad" not in sys.modules


def test_a_file_in_another_encoding_is_named(folder: Path) -> None:
    """Bytes that are not UTF-8 are an error of that file."""
    (folder / "bad.py").write_bytes("x = 'fa\u00e7ade'\n".encode("latin-1"))
    write(folder, {"a.py": JOB.format("a")})
    found = discover(folder)
    assert list(found.jobs) == ["a"]
    assert str(found.broken[0]).startswith("bad.py")


def test_a_key_pressed_while_a_file_is_imported_ends_the_command(folder: Path) -> None:
    """An interrupt that no statement of the file raised is a person's, and goes on to the caller."""
    write(folder, {"a.py": "import signal\nsignal.raise_signal(signal.SIGINT)\n"})
    with pytest.raises(KeyboardInterrupt):
        discover(folder)


@pytest.mark.parametrize("where", ["", "sub/"])
def test_a_packages_own_file_that_fails_takes_no_other_down(folder: Path, where: str) -> None:
    """When __init__.py raises it is named, and the files beside it are imported all the same."""
    write(
        folder,
        {
            f"{where}__init__.py": JOB.format("lost") + "\n1/0",
            f"{where}a.py": "from ._x import y\n" + JOB.format("a"),
        },
    )
    write(folder, {f"{where}_x.py": "y = 1"})
    found = discover(folder)
    assert list(found.jobs) == ["a"]
    (error,) = found.broken
    assert str(error).startswith(f"{where}__init__.py, line 6 could not be imported: ZeroDivisionError")


def test_half_a_module_is_not_left_for_the_next_import(folder: Path) -> None:
    """Two files that import each other: when the first fails, the second does not keep half of it."""
    write(
        folder,
        {
            "a.py": "from . import b\nfrom . import _x\n1/0",
            "b.py": "try:\n    from . import a\nexcept ImportError:\n    a = None\nfrom . import _x\n"
            + JOB.format("b"),
            "_x.py": "",
        },
    )
    found = discover(folder)
    assert "jobs.a" not in sys.modules
    assert [str(error).split(",")[0] for error in found.broken] == ["a.py", "b.py"]
    assert found.jobs == {}
