"""The suite is run on storage and a broker that do one thing wrong: the tests that are there for it must fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from runonce.testing.proxy import StorageProxy
from tests.conftest import ROOT, STORAGE
from tests.support.service_bus import require_broker
from tests.support.wrong_storage import GrantsTwice, IgnoresConditions

if TYPE_CHECKING:
    from runonce.testing.proxy import Proxy


RACES = "tests/acceptance/test_message_races.py::test_a_paused_owner_is_taken_over_and_changes_nothing"
CONTENTION = "tests/acceptance/test_contention.py::test_fifty_contenders_run_a_fire_time_once"
NOTHING_COMMITTED = (
    "tests/acceptance/test_invariants.py::test_3_a_run_that_lost_its_lease_commits_nothing[is running]"
)
TRUST = "tests/acceptance/test_invariants.py::test_2_trust_in_a_lease_ends_before_another_can_have_it"


def failed(tests: list[str], *options: str, storage: str = "") -> list[str]:
    """Those of the tests that fail in a process of their own; each has to run."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-rA", "-p", "no:cacheprovider", *options, *tests],
        cwd=ROOT,
        env={**os.environ, STORAGE: storage},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    ended = dict(
        found[::-1] for found in re.findall(r"^(PASSED|FAILED) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    )
    assert set(ended) == set(tests), done.stdout[-3000:]
    return [test for test in tests if ended[test] == "FAILED"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "tests"),
    [
        (
            IgnoresConditions,
            [
                NOTHING_COMMITTED,
                RACES,
                "tests/contract/test_table.py::test_a_replace_needs_the_etag_to_be_current[azurite]",
                "tests/contract/test_table.py::test_of_many_who_write_at_once_one_wins[azurite]",
            ],
        ),
        (
            GrantsTwice,
            [TRUST, CONTENTION, "tests/contract/test_leases.py::test_a_held_lease_is_refused[azurite]"],
        ),
    ],
)
def test_wrong_storage_is_noticed(wrong: type[Proxy], tests: list[str], azurite: str) -> None:
    """Without conditional writes, or with a lease for two, races and invariants fail, not only the contract."""
    storage = StorageProxy(azurite, wrong)
    try:
        assert failed(tests, storage=storage.connection_string) == tests
    finally:
        storage.close()


@pytest.mark.slow
def test_a_broker_that_forgets_ids_is_noticed() -> None:
    """Without duplicate detection the tests of what is sent twice fail."""
    require_broker()
    tests = [
        "tests/servicebus/test_broker_topic.py::test_a_topic_detects_duplicates_once_for_all",
        "tests/contract/test_transports.py::test_a_message_sent_twice_comes_once_and_its_correction_too[bus]",
    ]
    assert failed(tests, "-p", "tests.support.forgetful_broker") == tests
