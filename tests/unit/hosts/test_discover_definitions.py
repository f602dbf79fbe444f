"""A job that was defined is listed or told by name, however its definition was made and wherever it is kept."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from runonce.errors import UnknownJobError
from runonce.hosts.discover import discover
from tests.support.command_line import CommandLine, invoke
from tests.support.job_files import job_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HELPER = """
    from runonce import handler, scheduled

    def bare(f):
        def inner(run):
            return f(run)
        return inner

    def make(name, cron="0 0 3 * * *"):
        @scheduled(cron, name=name)
        def body(run): ...
        return body

    def make_handler(name):
        return handler(queue=name, name=name)(_take)

    def _take(message): ...
"""
HEAD = "from runonce import handler, scheduled\nfrom ._helper import bare, make, make_handler\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with job_files(tmp_path / "jobs", _helper=HELPER) as jobs:
        yield jobs


def write(folder: Path, **files: str) -> None:
    for name, source in files.items():
        (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(source), encoding="utf-8")


KEPT = {
    "returned by a factory of another file": ("eu = make('eu')\nus = make('us')", ["eu", "us"]),
    "made in a loop": ("for one in ('a', 'b', 'c'):\n    job = make(one)", ["a", "b", "c"]),
    "kept in a list": ("JOBS = [make('a'), make_handler('b')]", ["a", "b"]),
    "kept nowhere": ("make('a')", ["a"]),
    "deleted again": ("a = make('a')\ndel a", ["a"]),
    "in a class": (
        "class Nightly:\n    @scheduled('0 0 3 * * *')\n    def report(run): ...\n",
        ["report"],
    ),
    "over a decorator without wraps": (
        "@scheduled('0 0 3 * * *', name='timed')\n@bare\ndef timed(run): ...",
        ["timed"],
    ),
    "under a decorator without wraps": (
        "@bare\n@scheduled('0 0 3 * * *')\ndef timed(run): ...",
        ["timed"],
    ),
    "under a name used again": (
        "@scheduled('* * * * *', name='one')\ndef x(run): ...\n@scheduled('* * * * *', name='two')\ndef x(run): ...",
        ["one", "two"],
    ),
    "changed from another": (
        "from dataclasses import replace\nbase = make('base')\nother = replace(base, name='other')",
        ["base", "other"],
    ),
}


@pytest.mark.parametrize(("source", "names"), KEPT.values(), ids=KEPT)
def test_a_job_is_found_wherever_its_definition_is_kept(folder: Path, source: str, names: list[str]) -> None:
    """Every definition made while a file is imported is listed under its own name, with that file."""
    write(folder, a=source)
    found = discover(folder)
    assert found.broken == []
    assert sorted([*found.jobs, *found.handlers]) == names
    assert {file.as_posix() for file in found.files.values()} == {"a.py"}


def test_two_definitions_of_one_name_in_a_file_are_told_with_both_places(folder: Path) -> None:
    """The second of one name does not take the first one's place: the file is told, and neither is listed."""
    job = "@scheduled('0 0 3 * * *')\ndef same(run): ...\n"
    write(folder, a=f"{job}\n{job}", b="make('b')")
    found = discover(folder)
    assert list(found.jobs) == ["b"]
    (error,) = found.broken
    assert "a.py: job 'same' is defined twice in it (a.py, line 3 and a.py, line 6)" in str(error)


def test_a_loop_that_names_all_its_jobs_alike_is_told(folder: Path) -> None:
    """Jobs made under one name in a loop are an error with the name and the remedy, not the last one of them."""
    write(folder, a="for _ in range(3):\n    make('sync')")
    found = discover(folder)
    assert found.jobs == {}
    assert "job 'sync' is defined twice" in str(found.broken[0])
    assert 'name="…"' in str(found.broken[0])


def test_two_files_of_one_name_are_both_named(folder: Path) -> None:
    """A name defined in two files is told with both files; the first file keeps its job."""
    write(folder, a="make('sync')", b="make_handler('sync')")
    found = discover(folder)
    assert {name: file.name for name, file in found.files.items()} == {"sync": "a.py"}
    assert "b.py: job 'sync' is defined in a.py already" in str(found.broken[0])


def test_a_job_of_a_helper_that_two_files_import_is_one_job(folder: Path) -> None:
    """A definition that two job files import is one job of the first of them."""
    (folder / "_shared.py").write_text(HEAD + "shared = make('shared')\n", encoding="utf-8")
    write(folder, a="from ._shared import shared", b="from ._shared import shared\nmake('b')")
    found = discover(folder)
    assert found.broken == []
    assert {name: file.name for name, file in found.files.items()} == {"shared": "a.py", "b": "b.py"}


def test_a_helpers_job_outlives_the_first_file_that_imports_it(folder: Path) -> None:
    """A helper's job is there for the second file that imports the helper, when the first one then fails."""
    (folder / "_shared.py").write_text(HEAD + "shared = make('shared')\n", encoding="utf-8")
    write(folder, a="from . import _shared\n1/0", b="from . import _shared")
    found = discover(folder)
    assert {name: file.name for name, file in found.files.items()} == {"shared": "b.py"}
    assert len(found.broken) == 1


def test_a_job_of_a_package_beside_the_folder_is_found_each_time(folder: Path) -> None:
    """A job of the team's own package is listed by the file that imports it, in a second discovery too."""
    shop = folder.parent / "shop_of_a_team"
    shop.mkdir()
    (shop / "nightly.py").write_text(
        "from runonce import scheduled\n\n@scheduled('0 0 3 * * *')\ndef nightly(run): ...\n",
        encoding="utf-8",
    )
    write(folder, a="from shop_of_a_team.nightly import nightly")
    for _ in range(2):
        found = discover(folder)
        assert found.broken == []
        assert list(found.jobs) == ["nightly"]


def test_a_file_that_fails_half_way_inside_another_counts_once(folder: Path) -> None:
    """What an import that failed had defined is forgotten when the file's own turn comes, and succeeds."""
    write(
        folder,
        a="try:\n    from . import b\nexcept ZeroDivisionError:\n    pass\nmake('a')",
        b="make('b')\nimport builtins\nif not hasattr(builtins, 'tried'):\n    builtins.tried = True\n    1/0",
    )
    try:
        found = discover(folder)
    finally:
        del __import__("builtins").tried
    assert found.broken == []
    assert sorted(found.jobs) == ["a", "b"]


def test_a_value_that_cannot_be_looked_at_is_no_job(folder: Path) -> None:
    """A lazy proxy bound in a job file is left alone."""
    write(
        folder,
        a="""
            class Proxy:
                @property
                def __class__(self): raise RuntimeError("working outside of a request")
            proxy = Proxy()
            make('a')
        """,
    )
    found = discover(folder)
    assert found.broken == []
    assert list(found.jobs) == ["a"]


@pytest.mark.parametrize("command", [["list"], ["manifest"]], ids=" ".join)
def test_the_commands_complain_of_a_name_defined_twice(tmp_path: Path, command: list[str]) -> None:
    """`list` and `manifest` name the file and the reason, and end with code 5."""
    cli = CommandLine(tmp_path)
    with job_files(cli.folder, _helper=HELPER, a=HEAD + "make('x'); make('x')"):
        ended = invoke(cli.context(), *command, columns=400)
    assert ended.exit_code == 5
    assert "a.py: job 'x' is defined twice" in ended.output


SHARING = {
    "one file": {
        "a": '@handler(queue="bills")\ndef first(m): ...\n@handler(queue="Bills")\ndef second(m): ...'
    },
    "two files": {
        "a": '@handler(queue="bills")\ndef first(m): ...',
        "b": '@handler(queue="BILLS")\ndef second(m): ...',
    },
    "a subscription": {
        "a": '@handler(topic="Bills", subscription="Mail")\ndef first(m): ...',
        "b": '@handler(topic="bills", subscription="mail", forward=False)\ndef second(m): ...\n'
        '@handler(topic="bills", subscription="mail")\ndef third(m): ...',
    },
    "what it forwards to": {
        "a": '@handler(topic="bills", subscription="mail")\ndef first(m): ...',
        "b": '@handler(queue="bills.Mail")\ndef second(m): ...',
    },
}


@pytest.mark.parametrize("files", SHARING.values(), ids=SHARING)
def test_handlers_that_share_a_queue_do_not_run(folder: Path, files: dict[str, str]) -> None:
    """Each would take the other one's messages, so both are left out and told; what is beside them runs."""
    write(folder, fine='@handler(queue="others")\ndef other(m): ...', **files)
    found = discover(folder)
    assert "first" not in found.handlers
    assert "second" not in found.handlers or "third" not in found.handlers
    assert "other" in found.handlers
    told = str(found.broken[0])
    assert "'first' and '" in told
    assert "a queue of its own" in told
    with pytest.raises(UnknownJobError, match="a queue of its own"):  # what `work first` says, with 5
        found.handler("first")


CLASHING = {
    "a function of its retries and a handler": (
        '@handler(topic="bills", subscription="mail", forward=False)\ndef first(m): ...',
        '@handler(queue="others-2")\ndef first_retry(m): ...',
        "forward=False",
    ),
    "a function of its retries and a job": (
        '@handler(topic="bills", subscription="mail", forward=False)\ndef first(m): ...',
        '@scheduled("0 0 3 * * *")\ndef first_retry(run): ...',
        "forward=False",
    ),
    "a queue of dead letters": (
        '@handler(queue="bills")\ndef first(m): ...',
        '@handler(queue="bills-poison")\ndef first_retry(m): ...',
        "dead letters of handler 'first'",
    ),
    "the queue that a subscription forwards to": (
        '@handler(topic="bills", subscription="mail")\ndef first(m): ...',
        '@handler(queue="Bills.mail-poison")\ndef first_retry(m): ...',
        "dead letters of handler 'first'",
    ),
    "a topic and a queue": (
        '@handler(topic="bills", subscription="mail")\ndef first(m): ...',
        '@handler(queue="Bills")\ndef first_retry(m): ...',
        "either under one name",
    ),
    "a topic and the queue of another": (
        '@handler(topic="bills.mail", subscription="x")\ndef first(m): ...',
        '@handler(topic="bills", subscription="mail")\ndef first_retry(m): ...',
        "either under one name",
    ),
}


@pytest.mark.parametrize(("one", "other", "why"), CLASHING.values(), ids=CLASHING)
def test_two_of_which_one_has_a_name_made_for_the_other_do_not_run(
    folder: Path, one: str, other: str, why: str
) -> None:
    """Both are left out on every host, with an error that names both, what they share and the remedy."""
    write(folder, fine='@handler(queue="others")\ndef other(m): ...', one=one, two=other)
    found = discover(folder)
    assert (list(found.handlers), list(found.jobs)) == (["other"], [])
    [error] = found.broken
    assert all(part in str(error) for part in ("one.py and two.py", "'first'", "'first_retry'", why))


def test_names_that_only_look_alike_run(folder: Path) -> None:
    """A subscription that forwards has one function, and what ends like a made name but is none is let alone."""
    write(
        folder,
        one='@handler(topic="bills", subscription="mail")\ndef first(m): ...',
        two='@handler(queue="poison")\ndef first_retry(m): ...',
        three='@handler(queue="bills-poison")\ndef third(m): ...',
    )
    assert sorted(discover(folder).handlers) == ["first", "first_retry", "third"]


def test_what_each_host_does_by_itself_is_found(folder: Path, tmp_path: Path) -> None:
    """`@every` is listed with its interval, has a name of its own among the jobs, and is none that could be run."""
    every = "from runonce import every\n@every('5m')\ndef refresh():\n    'Fetch the prices.'\n"
    write(folder, prices=every, clash="refresh = make('refresh')")
    found = discover(folder)
    assert (list(found.jobs), [str(error).partition(":")[0] for error in found.broken]) == (
        ["refresh"],
        ["prices.py"],
    )
    (folder / "clash.py").unlink()
    found = discover(folder)
    assert (list(found.every), found.jobs, found.broken) == (["refresh"], {}, [])
    with pytest.raises(UnknownJobError, match="'refresh' is not a job: each host does it by itself"):
        found.job("refresh")
    (tmp_path / "other").mkdir()
    cli = CommandLine(tmp_path / "other")
    listed = cli.json("list", f"--jobs={folder}")
    assert listed["every"] == [{"name": "refresh", "summary": "Fetch the prices.", "seconds": 300}]
    shown = cli("list", f"--jobs={folder}").stdout
    assert "300 s" in shown
    assert "Fetch the prices." in shown
