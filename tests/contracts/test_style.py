"""Files and functions stay small; what is longer has a reason written here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rlframe", "algorithms", "strategies", "plugins", "templates")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MOST_LINES, MOST_BODY = 300, 50
REASONS: dict[str, str] = {}
"""File or file:function that is longer, and why."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_are_small(path):
    name = str(path.relative_to(ROOT))
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES or name in REASONS
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MOST_BODY or f"{name}:{node.name}" in REASONS, (node.name, length)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_first_lines_say_what_a_file_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_nothing_unpickles_files():
    """Loading a snapshot or model executes no code: no torch.load, no pickle.load on a file."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                call = ast.unparse(node.func)
                assert call not in ("torch.load", "pickle.load", "cloudpickle.load"), path


def test_remote_code_is_never_trusted():
    """transformers asks on the terminal where it is told nothing, so that each call says no."""
    told = 0
    for path in SOURCES:
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert ast.unparse(node.value) == "False", path
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("Auto"):
                continue
            if ast.unparse(node.func).endswith(".from_pretrained"):
                words = {keyword.arg for keyword in node.keywords}
                assert words & {"trust_remote_code", None}, f"{path}:{node.lineno}"
                told += 1
    assert told > 8
