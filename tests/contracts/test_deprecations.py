"""Renamed options, components, hooks and names work, warn, and have an end."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import rlframe
from rlframe import deprecations
from rlframe.config.load import Asked, load_config
from rlframe.deprecations import DEPRECATIONS, Deprecated, RlframeDeprecation, faults, moved_names
from rlframe.errors import ConfigError, PluginError
from rlframe.host.host import PluginHost, current_host

PAGE = (Path(__file__).parents[2] / "docs" / "deprecation.md").read_text(encoding="utf-8")
OPTION = Deprecated("option", "optim.rate", "optim.lr", "0.2", "0.4")
METHOD = Deprecated("component", "algorithm grpo1", "algorithm grpo", "0.2", "0.4")
HOOK = Deprecated("hook", "rlframe_fit_end", "rlframe_over", "0.2", "0.4")
NAME = Deprecated("name", "here:Old", "rlframe.errors:ConfigError", "0.2", "0.4")


@pytest.fixture(autouse=True)
def table(monkeypatch):
    rows = (OPTION, METHOD, NAME)
    monkeypatch.setattr(deprecations, "DEPRECATIONS", rows)
    monkeypatch.setattr("rlframe.config.old_keys.DEPRECATIONS", rows)


def load(*words, **values):
    return load_config(current_host(), Asked([], list(words), {}, values)).config


def test_the_table_keeps_the_policy():
    # What was imported here is the table itself, not the one of these tests.
    assert [fault for row in DEPRECATIONS for fault in faults(row, rlframe.__version__)] == []


@pytest.mark.parametrize(
    ("row", "version", "words"),
    [
        (Deprecated("option", "a", "b", "0.2", "0.3"), "0.2", "2 minor releases"),
        (Deprecated("option", "a", "b", "0.2", "0.4"), "0.1", "before its time"),
        (Deprecated("option", "a", "b", "0.2", "0.4"), "0.4.0", "delete the row"),
        (Deprecated("option", "a", "b", "0.2", "0.4"), "0.4.0rc1", "delete the row"),
        (Deprecated("option", "a", "a", "0.2", "0.4"), "0.2", "nothing else"),
        (Deprecated("option", "a", "b", "0.2", "0.4"), "0.3.1", None),
        (Deprecated("option", "a", "b", "0.9", "1.0"), "0.9", None),
    ],
)
def test_a_row_against_the_policy_is_told(row, version, words):
    found = faults(row, version)
    assert ([re.search(words, one) is not None for one in found] == [True]) if words else not found


def test_an_option_is_moved_with_a_warning_that_says_all():
    with pytest.warns(RlframeDeprecation) as seen:
        config = load("optim.rate=0.5")
    assert config.optim.lr == 0.5
    assert [str(one.message) for one in seen] == [
        "option 'optim.rate' is deprecated since rlframe 0.2 and goes in 0.4: write 'optim.lr' "
        "(command line)"
    ]


def test_an_option_from_python_is_moved_too():
    with pytest.warns(RlframeDeprecation, match="python"):
        assert load(optim={"rate": 0.25}).optim.lr == 0.25


def test_both_names_of_an_option_are_an_error():
    with pytest.raises(ConfigError, match=r"optim\.rate .* is the old name of optim\.lr"):
        load("optim.rate=0.5", "optim.lr=0.1")


def test_the_new_name_does_not_warn(recwarn):
    assert load("optim.lr=0.5").optim.lr == 0.5
    assert [one for one in recwarn if one.category is RlframeDeprecation] == []


def test_a_component_is_found_under_its_old_name():
    host = current_host()
    with pytest.warns(RlframeDeprecation, match="write 'algorithm grpo'"):
        assert host.find("algorithm", "grpo1") == host.find("algorithm", "grpo")
    with pytest.raises(PluginError, match="unknown rollout 'grpo1'"):
        host.find("rollout", "grpo1")


def test_a_plugin_with_an_old_hook_is_named(monkeypatch):
    monkeypatch.setattr(deprecations, "DEPRECATIONS", (HOOK,))
    plugin = ModuleType("old")
    plugin.rlframe_fit_end = rlframe.hookimpl(lambda run, error: None)
    with pytest.warns(RlframeDeprecation, match="write 'rlframe_over' \\(plugin 'acme'\\)"):
        info = PluginHost().register(plugin, "acme")
    assert info.error is None


def test_a_name_of_python_is_found_where_it_moved():
    find = moved_names("here")
    with pytest.warns(RlframeDeprecation, match="rlframe.errors:ConfigError"):
        assert find("Old") is ConfigError
    with pytest.raises(AttributeError, match="no attribute 'New'"):
        find("New")


def test_the_page_shows_the_warning_as_it_is_written():
    assert f"{OPTION} (run.yaml:3)" in PAGE
