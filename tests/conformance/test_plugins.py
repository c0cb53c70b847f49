"""PluginKit over our own distribution, and over packages with one mistake each."""

from __future__ import annotations

import sys

import pytest

from rlframe.testing.plugin_kit import PluginKit
from tests.unit.host.distributions import install, plugin


class TestOurs(PluginKit):
    distribution = "rlframe"


class Stranger(PluginKit):
    distribution = "rlframe-stranger"


GOOD = "'callback', 'strange', 'strange_parts:Strange', summary='one line'"
PARTS = """
from dataclasses import dataclass
from rlframe.interfaces.loop import Callback
class Strange(Callback):
    @dataclass(frozen=True)
    class Config:
        often: int = 1
        '''How often, at least 1.'''
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """Install a package from its plugin module and its parts."""

    def make(text: str, parts: str = PARTS) -> PluginKit:
        install(
            tmp_path,
            "rlframe-stranger",
            {"strange": "strange_plugin"},
            {"strange_plugin": text, "strange_parts": parts},
        )
        for name in ("strange_plugin", "strange_parts"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return Stranger()

    return make


CHECKS = sorted(name for name in vars(PluginKit) if name.startswith("test_"))


@pytest.mark.parametrize("check", CHECKS)
def test_a_good_package_passes(stranger, check):
    getattr(stranger(plugin(GOOD)), check)()


@pytest.mark.parametrize(
    ("text", "parts", "check"),
    [
        (plugin(GOOD) + "oops(", PARTS, "test_it_is_found_and_loads"),
        (plugin(GOOD, version=""), PARTS, "test_it_states_the_api_version"),
        (plugin(GOOD.replace(":Strange", ":Odd")), PARTS, "test_components_resolve"),
        (plugin(GOOD.replace("one line", "")), PARTS, "test_components_say_what_they_are"),
        (plugin(GOOD), PARTS.replace("(frozen=True)", ""), "test_options_are_frozen_and_explained"),
        (plugin(GOOD), PARTS.replace("'''", "#"), "test_options_are_frozen_and_explained"),
        (plugin(GOOD, GOOD), PARTS, "test_names_are_its_own"),
        (
            plugin("'logger', 'jsonl', 'strange_parts:Strange', summary='x'"),
            PARTS,
            "test_names_are_its_own",
        ),
        ("import torch\n" + plugin(GOOD), PARTS, "test_it_costs_nothing_before_it_is_chosen"),
    ],
)
def test_the_kit_notices_a_mistake(stranger, text, parts, check):
    from rlframe.errors import RlframeError

    with pytest.raises((AssertionError, RlframeError)):
        getattr(stranger(text, parts), check)()


def test_a_package_that_is_not_installed_is_told_so():
    class Absent(PluginKit):
        distribution = "rlframe-absent"

    with pytest.raises(AssertionError, match="pip install it"):
        Absent().test_it_is_found_and_loads()
