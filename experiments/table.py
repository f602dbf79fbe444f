"""What is printed: an introduction, how far things are, and the table."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from rich import box
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from experiments.effects import CLOCK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from experiments.lab import Finding
    from experiments.timeline import Timeline
    from runonce.settings import Settings

INTRODUCTION = """\
A scheduled job is run by several replicas, so that one of them may die. What must not happen is that it takes \
effect twice, or not at all. Here replicas are real processes on a real storage emulator. They are doubled, \
killed and paused, and a file that the toolkit knows nothing of counts each effect.

fire time      an instant that a schedule names; a job should take effect once for each
lease          a lock that ends by itself {lease} s after its last renewal: a dead holder blocks nobody for long
claim          the durable record that a fire time is taken; it outlives the lease
fencing token  a number that rises with each claim; storage refuses a write that carries an older one
recovery tick  looks every {tick:g} s for what is unfinished and free (60 s in production)
"""
WIDEST, NARROW = 120, 80
FULL = 110
"""From so many columns on the table has what was done and expected, too."""
NAME_WIDTH = max(len(name) for name in ("experiment", "lease-and-claim"))
MARKS = {True: ("✓", "ok", "green"), False: ("✗", "NO", "bold red"), None: ("-", "-", "dim")}


def print_introduction(console: Console, settings: Settings, names: Sequence[str]) -> None:
    """Say what is about to happen to somebody who has never heard of it."""
    head, _, words = INTRODUCTION.format(
        lease=settings.lease.duration, tick=settings.recovery_interval
    ).partition("\n\n")
    console.print(Text(head), width=min(console.width, 100))
    console.print()
    glossary = Table.grid(padding=(0, 2))
    glossary.add_column(style="bold", no_wrap=True)
    glossary.add_column()
    for line in words.splitlines():
        glossary.add_row(Text(line[:13].strip()), Text(line[13:].strip()))
    console.print(glossary, width=min(console.width, 100))
    console.print()
    waits = bool({"kill-9", "pause", "takeover", "locks"} & set(names))
    seconds = settings.lease.duration + 15 if waits else 30
    what = "1 experiment" if len(names) == 1 else f"{len(names)} experiments, some side by side"
    console.print(
        Text(
            f"Running {what}; this takes {'about' if waits else 'less than'} {seconds} s on an idle machine."
        )
    )
    console.print()


class Progress:
    """How far each experiment is: lines that are rewritten on a terminal, lines that follow each other elsewhere."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._began = CLOCK.elapsed()
        self._lock = threading.Lock()
        self._bars = Bars(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[stage]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._bars.add_task(
                name.ljust(NAME_WIDTH), start=False, total=1, stage="waits for its turn"
            )
            for name in names
        }

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return CLOCK.elapsed() - self._began

    def say(self, name: str, stage: str) -> None:
        """Say what an experiment does now."""
        with self._lock:
            if self._bars.disable:
                line = f"{self.seconds:5.1f} s  {name:{NAME_WIDTH}}  {stage}"
                self._console.print(Text(line), overflow="fold")
            elif not self._bars.tasks[self._tasks[name]].started:
                self._bars.start_task(self._tasks[name])
            self._bars.update(self._tasks[name], stage=stage)

    def done(self, name: str, timeline: Timeline | None) -> None:
        """An experiment is over: show the picture of what happened."""
        self.say(name, "done")
        self._bars.update(self._tasks[name], completed=1)
        if timeline is not None and timeline.effects:
            width = min(self._console.width, NARROW) - 2
            lines = timeline.draw(width, unicode=_unicode(self._console))
            with self._lock:
                self._console.print(Text("\n".join([name, *lines, ""])), soft_wrap=True)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
        if self._bars.disable:
            self._console.print()


def print_table(console: Console, findings: Mapping[str, Sequence[Finding]], seconds: float) -> int:
    """Print what was found, and in the last line whether it is as expected; 0 if it is."""
    table = Table(
        box=_box(console),
        width=min(console.width, WIDEST),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
        leading=1,
    )
    table.add_column("Experiment", no_wrap=True)
    for column, ratio in (("What was done", 4), ("Expected", 4), ("Seen", 5)):
        table.add_column(column, ratio=ratio, overflow="fold")
    table.add_column("", no_wrap=True)
    for name, rows in findings.items():
        for number, row in enumerate(rows):
            table.add_row(
                Text(name if number == 0 else ""),
                Text(row.done),
                Text(row.expected),
                Text(row.seen),
                _mark(console, ok=row.ok),
            )
    console.print(table)
    return _print_verdict(console, findings, seconds)


def print_summary(console: Console, findings: Mapping[str, Sequence[Finding]], seconds: float) -> int:
    """As `print_table`, for narrow terminals: what was seen alone, so that all of it is on one screen."""
    table = Table(
        box=_box(console),
        width=min(console.width, WIDEST),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    table.add_column("Experiment", no_wrap=True)
    table.add_column("Seen", ratio=1, overflow="fold")
    table.add_column("", no_wrap=True)
    for name, rows in findings.items():
        for number, row in enumerate(rows):
            table.add_row(Text(name if number == 0 else ""), Text(row.seen), _mark(console, ok=row.ok))
    console.print(table)
    return _print_verdict(console, findings, seconds)


def _print_verdict(console: Console, findings: Mapping[str, Sequence[Finding]], seconds: float) -> int:
    console.print()
    verdicts = [row.ok for rows in findings.values() for row in rows]
    differ, skipped = verdicts.count(False), verdicts.count(None)
    verdict = "All as expected" if not differ else f"{differ} of {len(verdicts)} differ from what is expected"
    left_out = f", {skipped} skipped on this machine" if skipped else ""
    console.print(
        Text(f"{verdict}{left_out} ({seconds:.0f} s).", style="bold red" if differ else "bold green")
    )
    return 1 if differ else 0


def _unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def _box(console: Console) -> box.Box:
    return box.SIMPLE_HEAD if _unicode(console) else box.ASCII


def _mark(console: Console, *, ok: bool | None) -> Text:
    sign, plain, style = MARKS[ok]
    return Text(sign if _unicode(console) else plain, style=style)
