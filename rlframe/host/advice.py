"""What a user meant by the name of a file: its classes, or the file beside it. Imports nothing."""

from __future__ import annotations

import ast
from pathlib import Path

from rlframe.errors import nearest

__all__ = ["file_advice", "nearest_file"]


def file_advice(name: str, *, with_functions: bool = False) -> str:
    """What to write where ``name`` is a file without ``:Class``; functions count for rewards."""
    path = Path(name).expanduser()
    if not path.is_file():
        return f"no file {name}{nearest_file(path)}"
    what = "class or function" if with_functions else "class"
    found = _names(path, with_functions)
    offer = " or ".join(f"{name}:{one}" for one in found[:5]) or f"{name}:NAME (it has none yet)"
    return f"name the {what} in it too: {offer}"


def nearest_file(path: Path) -> str:
    """``. Did you mean 'methods.py'?`` for a file that is not there; empty where none is near."""
    try:
        beside = [one.name for one in path.parent.glob("*.py")]
    except OSError:
        return ""
    close = nearest(path.name, beside)
    return f". Did you mean '{path.with_name(close)}'?" if close else ""


def _names(path: Path, with_functions: bool) -> list[str]:
    """Top-level classes, and public functions where they count."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
    functions = [n.name for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = classes + functions if with_functions else classes
    return [name for name in names if not name.startswith("_")]
