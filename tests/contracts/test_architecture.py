"""The picture of the parts is that of the code, and the page names every part."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def drawing():
    spec = importlib.util.spec_from_file_location("drawing", ROOT / "docs/draw_architecture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_that_of_the_code():
    module = drawing()
    counts = module.matrix()
    assert {part for pair in counts for part in pair} <= set(module.ORDER)
    assert module.PICTURE.read_text(encoding="utf-8") == module.draw(counts), (
        "python docs/draw_architecture.py"
    )


def test_the_page_names_every_package():
    packages = {p.parent.name for p in (ROOT / "rlframe").glob("*/__init__.py")}
    assert packages
    assert packages <= set(re.findall(r"`(\w+)`", PAGE))


def test_files_that_the_page_names_are_there():
    named = set(re.findall(r"`(\w+/\w+\.py|orchestrator\.py)", PAGE))
    assert len(named) > 8
    assert [name for name in named if not (ROOT / "rlframe" / name).is_file()] == []
