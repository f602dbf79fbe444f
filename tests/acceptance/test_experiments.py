from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from experiments import (
    ALONE,
    EXPERIMENTS,
    duplicates,
    invoicing,
    kill_9,
    late_replica,
    lease_and_claim,
    locks,
    no_lock,
    pause,
    program,
    sigterm,
    takeover,
)
from experiments.__main__ import main
from experiments.effects import CLOCK, Effect
from experiments.invoicing import Bill, Charged
from experiments.lab import Finding, Lab
from experiments.page import as_html
from experiments.processes import ExperimentError, Processes
from experiments.program import run_experiments
from experiments.table import print_summary, print_table
from experiments.timeline import Mark, Timeline
from runonce.errors import InputError, PermanentError, SettingsError
from runonce.settings import LeaseTerms, Settings, StorageConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
SAMPLE = ROOT / "jobs" / "data" / "invoices.csv"
SHORT_LEASE = {
    "RUNONCE_LEASE_DURATION": "15",
    "RUNONCE_LEASE_RENEWAL": "5",
    "RUNONCE_LEASE_MARGIN": "2",
    "RUNONCE_RECOVERY_INTERVAL": "2",
}


def console(width: int = 100) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, markup=False)


def text(made: Console) -> str:
    assert isinstance(made.file, io.StringIO)
    return made.file.getvalue()


@pytest.fixture
def short_lease(azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNONCE_STORAGE", azurite)
    for name, value in SHORT_LEASE.items():
        monkeypatch.setenv(name, value)
    # How fast is for the demo to show, on a machine of its own; here other tests take the processor as well.
    monkeypatch.setattr(sigterm, "RELEASED_WITHIN", 10.0)
    monkeypatch.setattr(pause, "NOTICED_WITHIN", 10.0)
    for module in (invoicing, kill_9, pause, sigterm):
        monkeypatch.setattr(module, "STARTING", 30.0)


# -- with real processes ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("short_lease")
def test_every_experiment_comes_out_as_expected(tmp_path: Path) -> None:
    """With the shortest lease there is, all experiments come out as the table expects, to the last row."""
    made = console()
    code = run_experiments(["all"], None, made, tmp_path / "page.html")
    assert code == 0, text(made)
    assert "All as expected" in text(made).splitlines()[-1]
    assert all(f"\n{name} " in text(made) for name in EXPERIMENTS)
    assert "60 charged, 4,784.70" in " ".join(text(made).split())
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for told in ("is killed (kill -9)", "is asked to stop (SIGTERM)", "is paused (SIGSTOP)", "takes over"):
        assert told in text(made)
        assert told in page


@pytest.fixture
def lab(azurite: str, tmp_path: Path) -> Iterator[Lab]:
    settings = Settings("unused", StorageConnection(azurite), LeaseTerms(15, 5, 2))
    processes = Processes()
    os.environ["RUNONCE_STORAGE"] = azurite
    yield Lab("late-replica", settings, SAMPLE, tmp_path, processes, lambda _: None)
    processes.end()
    del os.environ["RUNONCE_STORAGE"]


def test_a_real_experiment_differs_when_something_else_is_expected(lab: Lab) -> None:
    """The late replica's real effects are not as expected once the two expectations are swapped."""
    assert [finding.ok for finding in late_replica.run(lab)] == [True, True]
    swapped = late_replica.judge(lab.times(), alone=1, claimed=2)
    assert [finding.ok for finding in swapped] == [False, False]
    assert swapped[0].seen == "5 fire times took effect twice each: 10 effects"
    assert swapped[0].expected == "each takes effect once"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_no_replica_outlives_the_experiments(azurite: str, tmp_path: Path) -> None:
    """However the experiments are ended, no replica stays behind, not even one that is paused."""
    ends = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        mark = uuid.uuid4().hex
        environ = {**os.environ, **SHORT_LEASE, "RUNONCE_STORAGE": azurite, "EXPERIMENT_MARK": mark}
        environ["TMPDIR"] = str(tmp_path)  # a process killed with -9 does not clear up
        ends[number] = (
            mark,
            subprocess.Popen(
                [sys.executable, "-m", "experiments", "pause"],
                cwd=ROOT,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                start_new_session=True,
            ),
        )
    for number, (mark, process) in ends.items():
        assert process.stdout is not None
        with process.stdout:
            assert any("paused; the other" in line for line in process.stdout)
            assert len(marked(mark)) == 3
            process.send_signal(number)
            process.wait(20)
        until = CLOCK.elapsed() + 10
        while marked(mark) and CLOCK.elapsed() < until:
            pass
        assert marked(mark) == [], f"left behind after {number.name}"
        assert process.returncode not in (0, 1)


def marked(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"EXPERIMENT_MARK={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is not ours
    return found


# -- what is refused before anything starts --------------------------------------------------------------------

HEADER = b"InvoiceId,CustomerId,InvoiceDate,BillingCountry,Total\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file or directory; give a CSV file with the columns InvoiceId,CustomerId"),
        (b"\xff\xfe", "it is not UTF-8 text; give a CSV file"),
        (b"", "line 1, column InvoiceId: missing"),
        (b"InvoiceId,Total\n1,2\n", "line 1, column CustomerId: missing"),
        (HEADER, "a header and no invoices"),
        (
            HEADER + b"1,1,2026-01-01,Spain,1.00\n2,1,2026-01-01,Spain,-1\n",
            "line 3, column Total: '-1' is not",
        ),
    ],
)
def test_a_bad_file_is_told_before_anything_starts(
    content: bytes | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of invoices that cannot be used is one error that names it, and no process is started."""
    monkeypatch.setattr(subprocess, "Popen", pytest.fail)
    path = tmp_path / "mine.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((InputError, PermanentError)) as caught:
        run_experiments(["all"], path, console())
    assert str(caught.value).startswith(f"--invoices {path}")
    assert told in str(caught.value)


def test_storage_that_is_no_emulator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiments leave rows behind, so they do not touch a storage account."""
    monkeypatch.setenv("RUNONCE_STORAGE", "AccountName=shop;AccountKey=c2VjcmV0")
    monkeypatch.setenv("RUNONCE_NAMESPACE", "shop-production")
    with pytest.raises(SettingsError, match="RUNONCE_STORAGE names a storage account that is not on this"):
        run_experiments(["no-lock"], None, console())


def test_without_a_name_the_experiments_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list has a line for each, and nothing is started."""
    monkeypatch.setattr(sys, "argv", ["experiments"])
    assert main() == 0
    out = capsys.readouterr().out
    assert [name for name in (*EXPERIMENTS, *ALONE) if f"{name} " not in out] == []


def test_the_command_line_hands_on_names_invoices_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`all` and the file reach the program, and its exit code is the command's."""
    called = []

    def run(names: list[str], invoices: Path | None, _: Console, page: Path | None) -> int:
        called.append((names, invoices, page))
        return 1

    monkeypatch.setattr(program, "run_experiments", run)
    page = tmp_path / "page.html"
    monkeypatch.setattr(sys, "argv", ["experiments", "all", "--invoices", str(tmp_path), "--html", str(page)])
    assert main() == 1
    assert called == [(["all"], tmp_path, page)]


def test_an_unknown_experiment_is_told_with_the_known_ones() -> None:
    """A misspelt name gives the list of names."""
    with pytest.raises(InputError, match="no experiment 'kill'; there are no-lock, lease-and-claim"):
        run_experiments(["kill"], None, console())


# -- the verdicts can fail -------------------------------------------------------------------------------------


def test_no_lock_differs_when_a_fire_time_took_effect_once() -> None:
    """Without a lock, three effects each are expected, of every fire time."""
    assert no_lock.judge(Counter(dict.fromkeys("abcde", 3))).ok is True
    assert no_lock.judge(Counter({**dict.fromkeys("abcd", 3), "e": 1})).ok is False
    assert no_lock.judge(Counter(dict.fromkeys("abcd", 3))).ok is False
    assert no_lock.judge(Counter(dict.fromkeys("abcde", 3)), replicas=1).ok is False


def effects(*keys: str) -> list[Effect]:
    return [Effect(float(n), 100 + n % 3, key, 0) for n, key in enumerate(keys)]


def test_lease_and_claim_differs_when_one_is_doubled_or_missing() -> None:
    """One fire time twice, or never, is not as expected; effects before and after those counted are no matter."""
    assert lease_and_claim.judge(effects(*"zabcz"), "abc").ok is True
    assert lease_and_claim.judge(effects(*"aabc"), "abc").ok is False
    assert lease_and_claim.judge(effects(*"ab"), "abc").ok is False


def test_pause_differs_when_one_write_gets_through() -> None:
    """One late write that was carried out, or refused for another reason, is not as expected."""
    fenced = dict.fromkeys(("checkpoint", "blob"), "Fenced")
    assert pause.judge(fenced, 1, intact=True).ok is True
    assert pause.judge(fenced, 1, intact=False).ok is False
    through = pause.judge({**fenced, "blob": ""}, 1, intact=True)
    assert through.ok is False
    assert "1 of 2 refused" in through.seen
    assert "not refused: blob" in through.seen
    assert pause.judge({**fenced, "blob": "LeaseLost"}, 1, intact=True).ok is False


def test_takeover_differs_when_a_lease_is_not_waited_out_or_for_too_long() -> None:
    """A dead host's lease on another machine lasts to its end, and no longer; where death is seen nobody waits."""
    judged = {
        (end.how, end.terms.duration): [takeover.judge(end, [seconds, 3.0]).ok for seconds in (2.0, 30.0)]
        for end in takeover.ends()
    }
    assert {duration for _, duration in judged} == {45, 15}
    assert all(told == [not how.endswith("another machine"), False] for (how, _), told in judged.items())
    elsewhere = takeover.ends()[0]
    assert takeover.judge(elsewhere, [26.0, 45.0]).ok is True
    assert takeover.judge(elsewhere, [26.0, 52.0]).ok is False


def test_locks_differ_when_a_holder_is_replaced_late_or_writes_through_its_fence() -> None:
    """A killed holder is replaced at once where the lock is its connection's; a paused one's term is waited out."""
    for kind, killed, expected in (
        ("postgresql", 0.5, True),
        ("postgresql", 30.0, False),
        ("redis", 30.0, True),
    ):
        assert locks.judge(kind, 5, killed, 46.0, (0, 1), 65.0).ok is expected
    assert locks.judge("blob", 6, 30.0, 46.0, (0, 1), 65.0).ok is False
    assert locks.judge("blob", 5, 30.0, 70.0, (0, 1), 65.0).ok is False
    assert locks.judge("blob", 5, 30.0, 46.0, (1, 1), 65.0).ok is False


def test_all_is_without_what_takes_a_minute() -> None:
    """The demo runs what is short; a long experiment runs when it is named."""
    assert program._chosen(["all"]) == list(EXPERIMENTS)
    assert program._chosen(["takeover"]) == ["takeover"]


BILL = Bill({"1": 198, "2": 396, "3": 198})


def charged(
    *,
    calls: str = "123",
    amounts: tuple[int, ...] = (198, 396, 198),
    ledger: tuple[int, ...] = (198, 396, 198),
) -> Charged:
    cents = dict(zip("123", amounts, strict=True))
    made = [Effect(float(n), 1, key, cents[key]) for n, key in enumerate(calls)]
    return Charged(made, ledger, "succeeded", 2)


def test_an_invoice_charged_twice_or_not_at_all_differs() -> None:
    """Each way in which a bill can be wrong is noticed: the ledger, the provider's calls, and the amounts."""
    assert charged().finding(BILL, "", repeated=0).ok is True
    assert charged(calls="1223").finding(BILL, "", repeated=1).ok is True
    assert charged(calls="1223").finding(BILL, "", repeated=0).ok is False
    assert charged(calls="12").finding(BILL, "", repeated=0).ok is False
    assert charged(ledger=(198, 396)).finding(BILL, "", repeated=0).ok is False
    assert charged(ledger=(198, 396, 198, 198)).finding(BILL, "", repeated=0).ok is False
    assert charged(amounts=(198, 396, 199)).finding(BILL, "", repeated=0).ok is False
    failed = Charged(charged().calls, (198, 396, 198), "failed", 2).finding(BILL, "", repeated=0)
    assert failed.ok is False
    assert failed.seen.endswith("the run failed")


def test_a_message_that_has_two_effects_or_none_differs() -> None:
    """Every message must have had its effect, once, and nothing else."""
    invoices = [f"{n:03d}" for n in range(duplicates.MESSAGES)]
    once = dict.fromkeys(invoices, 1)
    assert duplicates.judge(once, invoices).ok is True
    assert duplicates.judge(once | {"007": 2}, invoices).ok is False
    assert duplicates.judge({k: n for k, n in once.items() if k != "007"}, invoices).ok is False


def test_an_experiment_that_cannot_be_carried_out_differs() -> None:
    """What goes wrong in an experiment is told in the table and counts as not as expected."""

    def broken() -> Lab:
        raise ExperimentError("replica 7 said no 'ready' within 60 s")

    (finding,) = program._carried_out("no-lock", broken)
    assert finding.ok is False
    assert finding.seen == "it could not: replica 7 said no 'ready' within 60 s"


@pytest.mark.parametrize(
    ("verdicts", "code", "last"),
    [
        ([True, True], 0, "All as expected (3 s)."),
        ([True, False, None], 1, "1 of 3 differ from what is expected, 1 skipped on this machine (3 s)."),
        ([True, None], 0, "All as expected, 1 skipped on this machine (3 s)."),
    ],
)
def test_the_last_line_is_the_verdict(verdicts: list[bool | None], code: int, last: str) -> None:
    """One row that differs makes the exit code 1, and a skipped one is never passed over in silence."""
    made = console()
    assert print_table(made, {"kill-9": [Finding("a", "b", "c", ok) for ok in verdicts]}, 3.2) == code
    assert text(made).splitlines()[-1] == last
    assert text(made).count("✗") == verdicts.count(False)


KILLED = Timeline(
    [7, 8],
    [Effect(100.0, 7, "1", 0), Effect(104.0, 7, "2", 0), Effect(120.0, 8, "3", 0), Effect(139.0, 8, "4", 0)],
    [Mark(105.0, 7, "X", "is killed")],
)


def test_the_picture_has_a_row_for_each_replica() -> None:
    """Effects, the kill, the wait for the dead holder's lease and the takeover are where they were in time."""
    assert KILLED.draw(51) == [
        "replica 1  █···█X░░░░░░░░░░░░░░····················",
        "replica 2  ····················»··················█",
        "           0 s ───────────────────────────── 39.0 s",
        "           X 5.0 s  replica 1 is killed",
        "           » 20.0 s  replica 2 takes over",
    ]
    assert all(line.isascii() for line in KILLED.draw(51, unicode=False))


def test_the_page_has_what_the_table_has() -> None:
    """The page holds what was done, expected and seen, escaped, and the picture with its events."""
    page = as_html({"kill-9": [Finding("a < b", "c", "d & e", ok=False)]}, {"kill-9": KILLED})
    for told in ("a &lt; b", "d &amp; e", "DIFFERS", "X 5.0 s  replica 1 is killed", "<svg"):
        assert told in page


def test_the_summary_is_on_one_screen() -> None:
    """On 80 columns all findings of all experiments take less than 40 lines, and none is wider than the terminal."""
    made = console(80)
    seen = (
        "attempt 2 at invoice 31 of 60 after 52.1 s, the rest charged once, 2,328.60 in all; 5 calls repeated"
    )
    found = [Finding("a", "b", seen, ok=True)] * 2
    assert print_summary(made, dict.fromkeys(EXPERIMENTS, found), 1) == 0
    assert len(text(made).splitlines()) < 40
    assert max(map(len, text(made).splitlines())) <= 80
    assert " ".join(text(made).split()).count("2,328.60") == 16


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_table_fits_and_loses_nothing(width: int) -> None:
    """At any usual width no line is longer than the terminal, no word is cut off and nothing is coloured."""
    made = console(width)
    words = "kill-9 of the replica that charges, after 205 of 412 invoices"
    print_table(made, {"lease-and-claim": [Finding(words, words, words, ok=True)]}, 1)
    lines = text(made).splitlines()
    assert max(map(len, lines)) <= min(width, 120)
    assert Counter(text(made).split())["invoices"] == 3
    assert "…" not in text(made)
    assert "\x1b" not in text(made)


def test_a_terminal_without_unicode_gets_plain_characters() -> None:
    """On an encoding without ticks and lines the table is drawn in ASCII."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    made = Console(file=file, width=80)
    print_table(made, {"kill-9": [Finding("a", "b", "c", ok=True)]}, 1)
    file.flush()
    assert b"ok" in file.buffer.getvalue()  # type: ignore[attr-defined]
