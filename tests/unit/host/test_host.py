"""Plugins of strangers: found, blocked, broken, twice; one never breaks another."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

from rlframe.errors import ConfigError, PluginError
from rlframe.host.components import KINDS, Component
from rlframe.host.hookspecs import hookimpl
from rlframe.host.host import PluginHost, PluginInfo
from tests.unit.host.distributions import install, plugin

GOOD = plugin("'algorithm', 'acme', 'acme_algo:Acme'")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on sys.path; modules that it brought are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()


def info(host: PluginHost, name: str) -> PluginInfo:
    return next(p for p in host.plugins if p.plugin == name)


def test_a_strangers_plugin_is_found_with_its_distribution(site):
    install(site, "rlframe-acme", {"acme": "acme_plugin"}, {"acme_plugin": GOOD}, version="2.5")
    host = PluginHost().load()
    found = info(host, "acme")
    assert (found.version, found.distribution, found.error) == ("2.5", "rlframe-acme", None)
    component = host.find("algorithm", "acme")
    assert (component.plugin, component.distribution) == ("acme", "rlframe-acme")
    assert "acme_algo" not in sys.modules
    assert host.find("algorithm", "grpo").distribution == "rlframe"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import not_there_at_all", "No module named 'not_there_at_all'"),
        ("def broken(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        (plugin(version="RLFRAME_API_VERSION = 2"), "version 2 of the plugin API"),
        (plugin("'algorithm', 'x', 'no-target'"), "must be 'pkg.module:Class'"),
        (plugin("'algo', 'x', 'a:B'"), "component kind 'algo'"),
        (plugin("'algorithm', 'a b', 'a:B'"), "component name 'a b'"),
        (plugin("'algorithm', 'x', 'a:B', 'vllm'"), "must be a tuple"),
        (GOOD.replace("return [", "return 3 #"), "returned int"),
        (GOOD.replace("return [", "return ['x'] #"), "which is no Component"),
        (
            GOOD.replace("rlframe_components", "rlframe_component"),
            "unknown hook 'rlframe_component'. Did you mean 'rlframe_components'?",
        ),
        (GOOD.replace("@hookimpl", ""), "put @rlframe.hookimpl above it"),
        (GOOD.replace("rlframe_components()", "rlframe_components(nope)"), "nope"),
    ],
)
def test_a_broken_plugin_keeps_its_error_and_breaks_nothing_else(site, source, expected):
    install(site, "rlframe-bad", {"bad": "bad_plugin"}, {"bad_plugin": source})
    install(site, "rlframe-acme", {"acme": "acme_plugin"}, {"acme_plugin": GOOD})
    host = PluginHost().load()
    assert expected in (info(host, "bad").error or "")
    assert info(host, "bad").components == []
    assert info(host, "acme").error is None
    assert host.find("algorithm", "grpo")
    with pytest.raises(PluginError, match="Not loaded: plugin 'bad'"):
        host.find("algorithm", "of-bad")


def test_the_error_says_where_it_was_raised(site):
    install(site, "rlframe-bad", {"bad": "bad_plugin"}, {"bad_plugin": "\n\nraise OSError('x')"})
    assert "bad_plugin.py:3" in (info(PluginHost().load(), "bad").error or "")


def test_a_damaged_distribution_is_named_and_the_others_load(site):
    install(site, "rlframe-bad", {"bad": "bad_plugin"}, {})
    (site / "rlframe_bad-1.0.dist-info" / "entry_points.txt").write_text("[rlframe]\nnonsense\n")
    install(site, "rlframe-acme", {"acme": "acme_plugin"}, {"acme_plugin": GOOD})
    host = PluginHost().load()
    assert info(host, "rlframe_bad").error
    assert host.find("algorithm", "acme")


def test_two_distributions_with_one_entry_point_name_both_load(site):
    install(site, "rlframe-one", {"acme": "one_plugin"}, {"one_plugin": GOOD})
    other = plugin("'algorithm', 'other', 'other_algo:Other'")
    install(site, "rlframe-two", {"acme": "two_plugin"}, {"two_plugin": other})
    host = PluginHost().load()
    assert host.find("algorithm", "acme")
    assert host.find("algorithm", "other")


def test_one_distribution_twice_on_the_path_counts_once(site, tmp_path, monkeypatch):
    install(site, "rlframe-acme", {"acme": "acme_plugin"}, {"acme_plugin": GOOD}, version="2.0")
    old = tmp_path / "old"
    install(old, "rlframe-acme", {"acme": "acme_plugin"}, {}, version="1.0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(old)])
    host = PluginHost().load()
    assert [p.version for p in host.plugins if p.distribution == "rlframe-acme"] == ["2.0"]


@pytest.mark.parametrize("name", ["acme", "rlframe-acme"])
def test_blocked_by_flag_means_never_imported(site, name):
    install(site, "rlframe-acme", {"acme": "acme_plugin"}, {"acme_plugin": GOOD})
    host = PluginHost([name]).load()
    assert info(host, "acme").error == "blocked by --no-plugin"
    assert "acme_plugin" not in sys.modules


def test_blocked_by_environment_means_never_imported(site, monkeypatch):
    monkeypatch.setenv("RLFRAME_NO_PLUGINS", "acme, not-here")
    install(site, "rlframe-acme", {"acme": "acme_plugin"}, {"acme_plugin": GOOD})
    host = PluginHost().load()
    assert info(host, "acme").error == "blocked by RLFRAME_NO_PLUGINS"
    assert "acme_plugin" not in sys.modules


def test_blocking_what_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match="unknown plugin 'algorithm'. Did you mean 'algorithms'"):
        PluginHost(["algorithm"]).load()


def test_a_name_offered_twice_names_both_and_the_flag(site):
    again = plugin("'algorithm', 'grpo', 'mine:GRPO'", "'algorithm', 'free', 'mine:Free'")
    install(site, "rlframe-acme", {"acme": "acme_plugin"}, {"acme_plugin": again})
    host = PluginHost().load()
    assert host.find("algorithm", "free")
    with pytest.raises(PluginError) as error:
        host.find("algorithm", "grpo")
    text = str(error.value)
    assert "'acme' (rlframe-acme)" in text
    assert "'algorithms' (rlframe)" in text
    flag = text.rpartition("--no-plugin ")[2]
    assert PluginHost([flag]).load().find("algorithm", "grpo")
    assert len(host.duplicates()) == 1
    assert "grpo" not in host.components("algorithm")


def test_unknown_name_has_the_nearest_as_the_design_writes_it():
    host = PluginHost().load()
    with pytest.raises(PluginError, match=r"^unknown algo 'gpro'\. Did you mean 'grpo'\?"):
        host.find("algorithm", "gpro")


def test_two_plugins_with_defaults_are_an_error(tmp_path):
    host = PluginHost()
    for name in ("one", "two"):
        module = types.ModuleType(name)
        module.rlframe_defaults = hookimpl(  # type: ignore[attr-defined]
            types.FunctionType((lambda: "x").__code__, globals(), "rlframe_defaults")
        )
        assert host.register(module, name).error is None
    with pytest.raises(PluginError, match="both offer defaults: block one with --no-plugin"):
        host.defaults()


def test_without_a_defaults_plugin_there_are_none():
    assert PluginHost().defaults() is None


def test_a_cli_hook_that_raises_keeps_its_error():
    host = PluginHost()
    called = []

    def make(name, action):
        module = types.ModuleType(name)

        @hookimpl
        def rlframe_cli(subcommands):
            action(subcommands)

        module.rlframe_cli = rlframe_cli
        host.register(module, name)

    make("good", called.append)
    make("bad", lambda _: 1 / 0)
    host.call_guarded("rlframe_cli", subcommands="x")
    assert called == ["x"]
    assert "ZeroDivisionError" in (info(host, "bad").error or "")
    assert info(host, "good").error is None


def test_every_kind_makes_a_component():
    for kind in KINDS:
        assert Component(kind, "a-b.c_1", "pkg.mod:Outer.Inner").kind == kind


def test_first_party_plugins_load_without_error(tmp_path: Path):
    host = PluginHost().load()
    ours = [p for p in host.plugins if p.distribution == "rlframe"]
    assert {p.plugin for p in ours} >= {"algorithms", "strategies", "plugins", "templates"}
    assert [p.error for p in ours if p.error] == []
    assert host.duplicates() == []
