from __future__ import annotations

import builtins
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from runonce.errors import JobFileError, SettingsError, UnknownJobError
from runonce.hosts.discover import discover
from tests.support.job_files import job_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GOOD = """
    from runonce import scheduled

    @scheduled("0 0 3 * * *")
    def {name}(run):
        ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Make a jobs folder of files given as name=source; what importing it leaves behind is put back."""
    with ExitStack() as stack:
        yield lambda **files: stack.enter_context(job_files(tmp_path / "jobs", **files))


def test_each_files_jobs_are_found(folder: Callable[..., Path]) -> None:
    """Every job of every file is found under its name, with its file."""
    jobs = folder(one=GOOD.format(name="first"), two=GOOD.format(name="second") + GOOD.format(name="third"))
    found = discover(jobs)
    assert sorted(found.jobs) == ["first", "second", "third"]
    assert {name: file.name for name, file in found.files.items()} == {
        "first": "one.py",
        "second": "two.py",
        "third": "two.py",
    }
    assert found.broken == []
    assert found.job("second") is found.jobs["second"]


def test_an_empty_folder_has_no_jobs(folder: Callable[..., Path]) -> None:
    """A folder without files is no error."""
    assert discover(folder()).jobs == {}


def test_files_with_an_underscore_are_helpers(folder: Callable[..., Path]) -> None:
    """A file whose name begins with an underscore is no job file; what it defines is its importer's."""
    jobs = folder(
        _shared=GOOD.format(name="hidden") + "\n    WHEN = '0 0 4 * * *'\n",
        job="""
            from ._shared import WHEN, hidden
            from runonce import scheduled

            @scheduled(WHEN)
            def visible(run): ...
        """,
    )
    found = discover(jobs)
    assert found.broken == []
    assert {name: file.name for name, file in found.files.items()} == {
        "hidden": "job.py",
        "visible": "job.py",
    }
    assert found.jobs["visible"].schedule.expression == "0 0 4 * * *"


def test_a_job_imported_from_another_file_is_that_files(folder: Callable[..., Path]) -> None:
    """A file that imports another's job does not define it a second time."""
    jobs = folder(
        a=GOOD.format(name="mine"), b="from .a import mine\n" + textwrap.dedent(GOOD.format(name="yours"))
    )
    found = discover(jobs)
    assert found.broken == []
    assert {name: file.name for name, file in found.files.items()} == {"mine": "a.py", "yours": "b.py"}


@pytest.mark.parametrize(("imported", "importing"), [("zz_first", "aa_second"), ("aa_first", "zz_second")])
def test_a_file_imported_from_another_is_the_same_one(
    folder: Callable[..., Path], imported: str, importing: str
) -> None:
    """Whichever file comes first, both have the same job, and its file is executed once."""
    jobs = folder(
        **{
            imported: "import builtins\nbuiltins.executed = getattr(builtins, 'executed', 0) + 1\n"
            + textwrap.dedent(GOOD.format(name="mine")),
            importing: f"from .{imported} import mine\nSAME = mine\n"
            + textwrap.dedent(GOOD.format(name="yours")),
        }
    )
    try:
        found = discover(jobs)
        assert builtins.executed == 1  # type: ignore[attr-defined]
    finally:
        del builtins.executed  # type: ignore[attr-defined]
    assert found.broken == []
    assert {name: file.stem for name, file in found.files.items()} == {"mine": imported, "yours": importing}
    assert sys.modules[f"jobs.{importing}"].SAME is found.jobs["mine"]


def test_a_second_name_for_the_same_job_is_one_job(folder: Callable[..., Path]) -> None:
    """`other = job` in a file is an alias, not a duplicate."""
    found = discover(folder(a=GOOD.format(name="mine") + "\n    alias = mine\n"))
    assert found.broken == []
    assert list(found.jobs) == ["mine"]


def test_a_file_named_like_a_module_shadows_nothing(folder: Callable[..., Path]) -> None:
    """A job file called json.py is a job file, and `import json` still gives Python's."""
    import json  # noqa: PLC0415

    found = discover(folder(json=GOOD.format(name="mine"), zlast="import json; json.dumps\n"))
    assert found.broken == []
    assert list(found.jobs) == ["mine"]
    assert sys.modules["json"] is json


def test_one_broken_file_hides_no_other(folder: Callable[..., Path]) -> None:
    """Whichever file is broken, and wherever it stands in the order, the others' jobs are all there."""
    jobs = folder(
        a="1/0", b=GOOD.format(name="kept"), c="raise SystemExit", d=GOOD.format(name="too"), e="def ("
    )
    found = discover(jobs)
    assert sorted(found.jobs) == ["kept", "too"]
    assert [type(error) for error in found.broken] == [JobFileError] * 3
    assert [str(error).split(",")[0] for error in found.broken] == ["a.py", "c.py", "e.py"]


def test_a_broken_file_is_logged_and_leaves_no_module(
    folder: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A broken file is told in the log with its line, and half of a module does not stay importable."""
    discover(folder(bad="x = 1\ny = 1/0\n"))
    assert "bad.py, line 2 could not be imported: ZeroDivisionError" in caplog.text
    assert "jobs.bad" not in sys.modules


def test_a_broken_file_gives_none_of_its_jobs(folder: Callable[..., Path]) -> None:
    """A file that fails after its first job gives neither: half of a file is never deployed."""
    found = discover(folder(half=GOOD.format(name="first") + "\n    1/0\n"))
    assert found.jobs == {}
    assert len(found.broken) == 1


def test_an_unknown_job_is_explained(folder: Callable[..., Path]) -> None:
    """Asking for a job that is not there lists those that are, and the files that did not load."""
    found = discover(folder(a=GOOD.format(name="here"), bad="1/0"))
    with pytest.raises(UnknownJobError) as unknown:
        found.job("gone")
    assert "no job 'gone'; the jobs are: here." in str(unknown.value)
    assert "bad.py, line 1" in str(unknown.value)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    """A folder that does not exist is an error that says where it was looked for and how to name another."""
    with pytest.raises(SettingsError) as missing:
        discover(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(missing.value)
    assert "RUNONCE_JOBS" in str(missing.value)


def test_a_folder_can_be_discovered_twice(folder: Callable[..., Path]) -> None:
    """A second look sees the file as it is by then."""
    jobs = folder(a=GOOD.format(name="old"))
    assert list(discover(jobs).jobs) == ["old"]
    (jobs / "a.py").write_text(textwrap.dedent(GOOD.format(name="much_newer")), encoding="utf-8")
    assert list(discover(jobs).jobs) == ["much_newer"]


@pytest.mark.slow
def test_threads_that_discover_at_once_each_find_everything(folder: Callable[..., Path]) -> None:
    """A discovery never takes a file that another thread is just importing for one without jobs."""
    slow = "import time\ntime.sleep(0.02)\n" + textwrap.dedent(GOOD)
    jobs = folder(**{f"file_{n}": slow.format(name=f"job_{n}") for n in range(5)})
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(discover, [jobs] * 6))
    assert [sorted(one.jobs) for one in found] == [[f"job_{n}" for n in range(5)]] * 6
    assert [one.broken for one in found] == [[]] * 6
