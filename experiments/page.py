"""The experiments' findings and pictures as one HTML page that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from experiments import EXPERIMENTS
from experiments.timeline import BLOCKED, EFFECT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from experiments.lab import Finding
    from experiments.timeline import Timeline

CELLS = 120
COLOURS = {EFFECT: "#2563eb", BLOCKED: "#fca5a5", "·": "#e5e7eb"}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; }
td, th { border-bottom: 1px solid #ddd; padding: .4em .6em; text-align: left; vertical-align: top; }
td.ok { color: #15803d; } td.no { color: #b91c1c; font-weight: bold; }
svg { width: 100%; height: auto; } ul { list-style: none; padding-left: 0; }
"""
WORDS = {True: ("ok", "as expected"), False: ("no", "DIFFERS"), None: ("", "skipped here")}


def as_html(findings: Mapping[str, Sequence[Finding]], timelines: Mapping[str, Timeline]) -> str:
    """The page: for each experiment what it shows, what was done, expected and seen, and its picture."""
    parts = []
    for name, rows in findings.items():
        parts.append(f"<h2>{escape(name)}</h2><p>{escape(EXPERIMENTS[name])}</p>{_table(rows)}")
        if name in timelines and timelines[name].effects:
            parts.append(_picture(timelines[name]))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>runonce: experiments</title>'
        f"<style>{STYLE}</style></head><body><h1>What is promised, and what was seen</h1>"
        f"{''.join(parts)}</body></html>\n"
    )


def _table(rows: Sequence[Finding]) -> str:
    cells = []
    for row in rows:
        kind, word = WORDS[row.ok]
        texts = "".join(f"<td>{escape(text)}</td>" for text in (row.done, row.expected, row.seen))
        cells.append(f'<tr>{texts}<td class="{kind}">{word}</td></tr>')
    head = "<tr><th>What was done</th><th>Expected</th><th>Seen</th><th></th></tr>"
    return f"<table>{head}{''.join(cells)}</table>"


def _picture(timeline: Timeline) -> str:
    shapes = []
    for number, row in enumerate(timeline.rows(CELLS)):
        top = 20 * number
        shapes.append(f'<text x="0" y="{top + 13}" font-size="11">replica {number + 1}</text>')
        for cell, sign in enumerate(row):
            left = 70 + 8 * cell
            if sign in COLOURS:
                shapes.append(f'<rect x="{left}" y="{top}" width="8" height="16" fill="{COLOURS[sign]}"/>')
            else:
                shapes.append(f'<text x="{left}" y="{top + 13}" font-size="13">{escape(sign)}</text>')
    high = 20 * len(timeline.replicas)
    told = "".join(f"<li>{escape(event)}</li>" for event in timeline.events())
    return (
        f'<svg viewBox="0 0 {70 + 8 * CELLS} {high}" role="img" aria-label="what each replica did">'
        f"{''.join(shapes)}</svg><ul>{told}</ul>"
    )
