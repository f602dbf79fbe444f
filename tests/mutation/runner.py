"""Where a mutant is tried: in a fork of a pytest session that has collected the tests and has run none of them."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mutmut.configuration import config
from mutmut.runners.harness import PytestRunner, TestRunner
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd
from mutmut.workers import isolation

if TYPE_CHECKING:
    from collections.abc import Iterable


class Collected(TestRunner):
    """Tests that are collected: each mutant goes on from here, where starting pytest takes longer than most tests."""

    def __init__(self, session: pytest.Session) -> None:
        """Find them by their ids, and count what each has found for all the forks to see."""
        self._session = session
        self._items = {item.nodeid: (item, number) for number, item in enumerate(session.items)}
        self._found = mmap.mmap(-1, len(session.items))

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:  # noqa: ARG002
        """Run those first that have found most, then the fastest, until one fails: 1, or 0 where none does."""
        chosen = sorted(
            (self._items[name] for name in tests),
            key=lambda one: (-self._found[one[1]], state().duration_by_test[one[0].nodeid]),
        )
        for (item, number), (following, _) in zip(chosen, [*chosen[1:], (None, 0)], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._session.testsfailed:
                self._found[number] = min(255, self._found[number] + 1)
                return 1
        return 0


class Runner(isolation.ForkServerRunner):
    """A process that has run tests has threads of theirs, and is not to be forked; the one that forks only collects."""

    def __init__(self, processes: int) -> None:
        """Take the place of mutmut's own."""
        super().__init__(processes, PytestRunner, {})

    def run_clean_tests(self, tests: Iterable[str]) -> int:  # noqa: ARG002
        """They have just passed, when it was noted what each comes by."""
        return 0

    def _forkserver_main(self, work_fd: int, result_fd: int) -> None:
        runner, serve = self, super()._forkserver_main
        # It ends a process by its number, long after that may be another program's; pytest's own time-out is enough.
        isolation.register_timeout = lambda _pid, _seconds: None

        class Within:
            """The session waits where it would begin to run tests."""

            @pytest.hookimpl(tryfirst=True)
            def pytest_runtestloop(self, session: pytest.Session) -> bool:
                runner.test_runner_class, runner.test_runner_args = Collected, {"session": session}
                gc.freeze()  # or each fork copies what the collector looks at
                serve(work_fd, result_fd)
                return True

        chosen = [*config().pytest_add_cli_args_test_selection, *config().pytest_add_cli_args]
        with (
            change_cwd("mutants"),
            Path(os.devnull).open("w") as nowhere,
            contextlib.redirect_stdout(nowhere),
        ):
            # What is printed is kept by each process for itself: --capture=fd has one file for all forks.
            pytest.main(["--rootdir=.", "--tb=no", "--capture=sys", *chosen], plugins=[Within()])
