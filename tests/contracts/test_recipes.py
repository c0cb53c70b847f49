"""Every recipe loads, is short, and says what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlframe.config.load import Asked, load_config
from rlframe.errors import PluginError
from rlframe.host.host import current_host

RECIPES = sorted((Path(__file__).parents[2] / "templates/rlframe_templates/recipes").glob("*.yaml"))


def test_there_are_recipes():
    assert RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_it_loads_and_is_short(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert len(text.splitlines()) <= 40
    try:
        loaded = load_config(current_host(), Asked(files=[path]))
    except PluginError as error:
        if "needs the package" not in str(error):
            raise
        pytest.skip(f"{error}; make test-vllm has vllm")
    assert loaded.config.algo.name in text
