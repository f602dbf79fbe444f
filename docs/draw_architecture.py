"""Draws docs/architecture.svg from the code: the floors of pyproject.toml, and who imports whom.

python docs/draw_architecture.py           writes the picture
python docs/draw_architecture.py --check   ends with 1 when it is not what the code says
"""

from __future__ import annotations

import sys
import tomllib
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"
WIDTH, LEFT, BOX, GAP, LINE = 980, 30, 610, 16, 17
EVERYWHERE = ("errors", "clock")
"""Known to all, so not drawn."""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .name { font-weight: 600 } .small { fill: #59636e }
rect { fill: #f6f8fa; stroke: #d1d9e0 } path { fill: none; stroke: #59636e } .page { fill: #fff; stroke: none }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 } rect { fill: #151b23; stroke: #3d444d } path { stroke: #9198a1 }
  .page { fill: #0d1117 }
}"""


def floors() -> list[str]:
    """The floors from the top down, as the contract has them."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return list(config["contracts"][0]["layers"])


def modules(floor: str) -> list[str]:
    """What a floor consists of, by name; a module alone is its own only room."""
    folder = ROOT / "runonce" / floor
    inside = [path.relative_to(folder) for path in folder.rglob("*.py") if path.name != "__init__.py"]
    return sorted(path.with_suffix("").as_posix() for path in inside)


def wrapped(words: list[str], width: int = 84) -> list[str]:
    """The words in lines of so many characters."""
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f"{word}  "
    return [line.strip() for line in lines if line.strip()]


def draw() -> str:
    """The picture as SVG."""
    sys.path.insert(0, str(ROOT))
    graph = grimp.build_graph("runonce", exclude_type_checking_imports=True, cache_dir=None)
    order = floors()
    boxes: dict[str, tuple[int, int]] = {}
    shapes: list[str] = []
    y = 50
    for floor in order:
        rooms = wrapped(modules(floor))
        height = 28 + LINE * len(rooms)
        boxes[floor] = y, height
        shapes.append(f'<rect x="{LEFT}" y="{y}" width="{BOX}" height="{height}" rx="6"/>')
        shapes.append(f'<text class="name" x="{LEFT + 12}" y="{y + 19}">{escape(floor)}</text>')
        shapes += [
            f'<text class="small" x="{LEFT + 12}" y="{y + 19 + LINE * n}">{escape(line)}</text>'
            for n, line in enumerate(rooms, 1)
        ]
        y += height + GAP
    for here, floor in enumerate(order):
        for distance, below in enumerate(order[here + 1 :], 1):
            if below not in EVERYWHERE and (count := len(imports(graph, floor, below))):
                shapes.append(arrow(boxes[floor], boxes[below], here, distance, count))
    title = "runonce: every import goes down (not drawn: to errors and clock, which all know)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" aria-label="{title}">'
        f"<style>{STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8"/></marker></defs>\n'
        f'<rect class="page" width="{WIDTH}" height="{y}"/><text class="name" x="{LEFT}" y="30">{title}</text>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def imports(graph: grimp.ImportGraph, floor: str, below: str) -> list[tuple[str, str]]:
    """The imports from one floor into another, module by module."""
    names = [
        name for name in graph.modules if name == f"runonce.{floor}" or name.startswith(f"runonce.{floor}.")
    ]
    inside = (f"runonce.{below}", f"runonce.{below}.")
    return [
        (name, of)
        for name in sorted(names)
        for of in sorted(graph.find_modules_directly_imported_by(name))
        if of == inside[0] or of.startswith(inside[1])
    ]


def arrow(top: tuple[int, int], bottom: tuple[int, int], here: int, distance: int, count: int) -> str:
    """A bow on the right-hand side, the wider the farther it goes."""
    x, start, end = LEFT + BOX, top[0] + 14 + 2 * distance, bottom[0] + 10 + here
    bow = x + 24 * distance + 8
    width = min(4.0, 0.6 + count / 12)
    return (
        f'<path d="M{x} {start} C{bow} {start} {bow} {end} {x + 2} {end}" stroke-width="{width:.1f}" '
        f'marker-end="url(#tip)" opacity="0.75"><title>{count} imports</title></path>'
    )


if __name__ == "__main__":
    made = draw()
    if "--check" in sys.argv:
        sys.exit(PICTURE.read_text(encoding="utf-8") != made)
    PICTURE.write_text(made, encoding="utf-8", newline="\n")
