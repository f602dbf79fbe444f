"""Runs the experiments, several at a time, and prints the table."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from experiments import ALONE, EXPERIMENTS
from experiments.effects import CLOCK
from experiments.lab import JOBS, Finding, Lab
from experiments.page import as_html
from experiments.processes import ExperimentError, Processes
from experiments.table import FULL, Progress, print_introduction, print_summary, print_table
from runonce.errors import InputError, SettingsError
from runonce.execution.threads import start_thread
from runonce.hosts.discover import discover
from runonce.settings import Settings
from runonce.stores.azure.stores import azure_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from experiments.timeline import Timeline

LONGEST_FIRST = (
    "takeover",
    "locks",
    "kill-9",
    "pause",
    "sigterm",
    "lease-and-claim",
    "duplicates",
    "no-lock",
    "poison",
    "late-replica",
)
SIDE_BY_SIDE = 3
"""Experiments at a time: two mostly wait for a lease to end, and two cores have to do for all of them."""
RECOVERY = 5.0
"""Seconds between recovery ticks, unless RUNONCE_RECOVERY_INTERVAL says otherwise; 60 in production."""
SAMPLE = JOBS / "data" / "invoices.csv"


def run_experiments(
    names: Sequence[str], invoices: Path | None, console: Console, page: Path | None = None
) -> int:
    """Run experiments and print what came of them as a table: 0 when all is as expected, else 1.

    Args:
        names: Keys of `EXPERIMENTS`; "all" stands for all of them.
        invoices: A CSV file for the invoice runs; None for the sample of the repository.
        console: Where the table goes.
        page: A file to write the same to as an HTML page.

    Raises:
        InputError, PermanentError: A name or the file is wrong; nothing was started.
        SettingsError: The settings are wrong, or name storage that is no emulator.
        StoreError: Storage does not answer.
    """
    chosen = _chosen(names)
    path = _checked_invoices(invoices)
    settings = _checked_settings()
    print_introduction(console, settings, chosen)
    progress = Progress(console, chosen)
    findings: dict[str, list[Finding]] = {}
    labs: dict[str, Lab] = {}
    timelines: dict[str, Timeline] = {}
    processes = Processes()
    waiting: SimpleQueue[str] = SimpleQueue()
    for name in sorted(chosen, key=LONGEST_FIRST.index):
        waiting.put(name)
    with tempfile.TemporaryDirectory(prefix="runonce-", ignore_cleanup_errors=True) as folder:

        def work() -> None:
            while not processes.ended.is_set():
                try:
                    name = waiting.get_nowait()
                except Empty:
                    return
                say = partial(progress.say, name)

                def make(name: str = name, say: Callable[[str], None] = say) -> Lab:
                    labs[name] = Lab(name, settings, path, Path(folder), processes, say)
                    return labs[name]

                findings[name] = _carried_out(name, make)
                if name in labs:
                    timelines[name] = labs[name].timeline()
                if not processes.ended.is_set():
                    progress.done(name, timelines.get(name))

        with ended_by_signals(), progress:
            try:
                threads = [start_thread(work, "experiments") for _ in range(SIDE_BY_SIDE)]
                while any(thread.is_alive() for thread in threads):
                    CLOCK.wait(threading.Event(), 0.1)  # not join: it would keep Ctrl-C waiting on Windows
            finally:
                processes.end()
    ordered = {name: findings[name] for name in chosen}
    if page is not None:
        page.write_text(as_html(ordered, timelines), encoding="utf-8")
        console.print(f"the same as a page: {page}\n", markup=False)
    show = print_table if console.width >= FULL else print_summary
    return show(console, ordered, progress.seconds)


def _carried_out(name: str, make: Callable[[], Lab]) -> list[Finding]:
    try:
        module: Any = import_module(f"experiments.{name.replace('-', '_')}")
        lab = make()
        try:
            found: list[Finding] = module.run(lab)
        finally:
            lab.end()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told in the table
        kind = "" if isinstance(error, ExperimentError) else f"{type(error).__name__}: "
        return [
            Finding(
                (EXPERIMENTS | ALONE)[name], "it can be carried out", f"it could not: {kind}{error}", ok=False
            )
        ]
    return found


def _chosen(names: Sequence[str]) -> list[str]:
    known = EXPERIMENTS | ALONE
    for name in names:
        if name not in known and name != "all":
            raise InputError(f"There is no experiment {name!r}; there are {', '.join(known)}, and all.")
    return [name for name in known if name in names or ("all" in names and name in EXPERIMENTS)]


def _checked_invoices(invoices: Path | None) -> Path:
    """The file the invoice runs work on, after the job's own checks; the sample where none is given."""
    if not (JOBS / "invoice_run.py").is_file():
        raise SettingsError(
            f"The experiments use the job {JOBS / 'invoice_run.py'}, which is not there: run them in a "
            f"checkout of the repository."
        )
    path = invoices or SAMPLE
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(
            f"--invoices {path}: {reason}; give a CSV file with the columns "
            f"InvoiceId,CustomerId,InvoiceDate,BillingCountry,Total."
        ) from error
    discover(JOBS).job("invoice_run")  # says so when the job does not load
    shared: Any = import_module("examples._invoices")
    shared.read_invoices(text, f"--invoices {path}")
    return path


def _checked_settings() -> Settings:
    settings = Settings.from_env()
    if not settings.storage.is_local:
        raise SettingsError(
            f"{settings.storage.setting} names a storage account that is not on this machine. The experiments "
            f'kill what they start and leave rows behind: give them an emulator, "UseDevelopmentStorage=true".'
        )
    if not os.environ.get("RUNONCE_RECOVERY_INTERVAL"):
        settings = replace(settings, recovery_interval=RECOVERY)
    azure_stores(settings).leases.held(f"{settings.namespace}/experiments")  # raises when nothing answers
    return settings


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Leave by an exception on SIGTERM and SIGHUP too, so that no replica stays behind."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
