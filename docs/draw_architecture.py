"""Draw ``architecture.svg``: which part of rlframe imports which, read from the code.

A row imports its columns; the number is how many modules of the row do, imports made for types
alone left out. ``python docs/draw_architecture.py`` writes the picture again.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = Path(__file__).parent / "architecture.svg"
ORDER = (
    "errors", "requests", "ops", "timeline", "host", "config", "models", "data", "weights",
    "batching", "calling", "interfaces", "algorithm", "learning", "rewards", "dialogue",
    "collecting", "snapshots", "recording", "orchestrator", "build", "recovery", "evaluating",
    "report", "doctor", "fit", "public", "cli", "simulation", "testing", "algorithms",
    "strategies", "plugins", "templates",
)  # fmt: skip
"""Parts from the ground up; what is outside of the core comes last."""
TOP = {
    "roles": "algorithm", "asking": "algorithm", "parts": "orchestrator", "place": "build",
    "inputs": "build", "anchor": "fit", "fit_api": "fit", "__main__": "cli", "__init__": "public",
    "deprecations": "errors", "serving": "interfaces",
}  # fmt: skip
"""Modules beside the packages, and the part that they are counted with."""
CELL, LEFT, ABOVE = 22, 110, 96


def part_of(module: str) -> str:
    """The part that a module ``rlframe.x.y`` or ``rlframe_x.y`` belongs to."""
    first, *rest = module.split(".")
    if first != "rlframe":
        return first.removeprefix("rlframe_")
    name = rest[0] if rest else "__init__"
    return TOP.get(name, name)


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules of rlframe that are imported when the code runs, also those inside functions."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0].startswith(
            "rlframe"
        ):
            yield str(node.module)
        stack.extend(ast.iter_child_nodes(node))


def matrix(root: Path = ROOT) -> dict[tuple[str, str], int]:
    """How many modules of one part import another."""
    found: dict[tuple[str, str], set[Path]] = defaultdict(set)
    packages = [root / "rlframe", *sorted(root.glob("*/rlframe_*"))]
    for package in packages:
        for path in sorted(package.rglob("*.py")):
            if "scaffold" in path.parts:
                continue
            inside = path.relative_to(package.parent).with_suffix("").parts
            here = part_of(".".join(inside))
            for module in imports(ast.parse(path.read_text(encoding="utf-8"))):
                there = part_of(module)
                if there != here:
                    found[here, there].add(path)
    return {pair: len(paths) for pair, paths in found.items()}


def draw(counts: dict[tuple[str, str], int], order: Sequence[str] = ORDER) -> str:
    """The matrix as SVG; below the diagonal a part uses what lies under it."""
    size = len(order) * CELL
    parts = []
    for i, name in enumerate(order):
        y, x = ABOVE + i * CELL, LEFT + i * CELL
        parts.append(f'<text x="{LEFT - 6}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        turned = f"rotate(-60 {x + 14} {ABOVE - 6})"
        parts.append(f'<text x="{x + 14}" y="{ABOVE - 6}" transform="{turned}">{name}</text>')
        parts.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="#bbb"/>')
    for (here, there), count in sorted(counts.items()):
        i, j = order.index(here), order.index(there)
        x, y = LEFT + j * CELL, ABOVE + i * CELL
        colour = "#dbe8f5" if j < i else "#f7d9c4"
        words = f"<title>{here} imports {there}: {count} modules</title>"
        box = f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{colour}" stroke="#fff">'
        parts.append(f"{box}{words}</rect>")
        middle = f'x="{x + CELL / 2:g}" y="{y + 15}" text-anchor="middle"'
        parts.append(f"<text {middle}>{count}</text>")
    width, height = LEFT + size + 40, ABOVE + size + 8
    style = "text{font:11px system-ui,sans-serif;fill:#222}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>Which part imports which</title><style>{style}</style>"
        f'<rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(matrix()), encoding="utf-8")
