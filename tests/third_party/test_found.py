"""Packages of strangers as wheels: found, listed, run, and broken on purpose, one mistake each.

A wheel that is unpacked on the path is installed, as far as Python is concerned;
``test_installed.py`` has pip do it, and runs the packages' own tests.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from rlframe.cli.main import main
from rlframe.errors import PluginError
from rlframe.host.host import PluginHost
from tests.third_party.wheels import PACKAGES, copied, wheel

OFFERS = {
    "winrate": [("algorithm", "win-rate"), ("reward", "near"), ("environment", "warmer")],
    "afresh": [("rollout", "afresh"), ("scheduler", "bursts")],
}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Both wheels' contents in one folder, as site-packages has them."""
    folder = tmp_path_factory.mktemp("strangers")
    for package in PACKAGES:
        built = wheel(copied(package, folder), folder / "dist")
        with zipfile.ZipFile(built) as archive:
            archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def site(unpacked, tmp_path, monkeypatch):
    """The folder on the path; tests may change it, and what it brought is forgotten afterwards."""
    folder = tmp_path / "site"
    shutil.copytree(unpacked, folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    for name in [
        name for name in sys.modules if name.startswith(("rlframe_winrate", "rlframe_af"))
    ]:
        del sys.modules[name]
    importlib.invalidate_caches()


def listed(capsys, *words: str) -> dict[str, dict]:
    assert main(["plugins", "--json", *words]) == 0
    return {plugin["plugin"]: plugin for plugin in json.loads(capsys.readouterr().out)}


def test_they_are_listed_with_what_they_offer(site, capsys):
    plugins = listed(capsys)
    for name, offers in OFFERS.items():
        mine = plugins[name]
        assert (mine["error"], mine["distribution"]) == (None, f"rlframe-{name}")
        assert [(c["kind"], c["name"]) for c in mine["components"]] == offers
        assert all(c["available"] and c["summary"] for c in mine["components"])


def test_nothing_of_them_is_imported_before_it_is_chosen(site, capsys):
    listed(capsys)
    modules = {name for name in sys.modules if name.startswith("rlframe_winrate.")}
    assert modules == {"rlframe_winrate.plugin"}


def test_all_of_them_run_together(site):
    words = ["--algo", "win-rate", "--reward", "near", "--env", "warmer", "--rollout", "afresh"]
    words += ["--scheduler", "bursts", "steps=2", "data.prompts_per_step=2", "run.name=run"]
    words += ["rollout.max_new_tokens=4", "algo.samples_per_prompt=4", "data.validate=null"]
    assert main(["fit", *words, "logger=jsonl"]) == 0
    lines = (Path("runs") / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "training/global_step" in row]
    assert [row["training/global_step"] for row in steps] == [1, 2]
    assert all(0 <= row["critic/rewards/mean"] <= 1 for row in steps)


def test_an_option_of_theirs_is_checked_like_ours(site, capsys):
    assert main(["validate", "--scheduler", "bursts", "scheduler.stepz=3"]) == 2
    assert "Did you mean 'scheduler.steps'" in capsys.readouterr().err
    assert main(["validate", "--scheduler", "bursts", "scheduler.steps=0"]) == 2
    assert "scheduler.steps" in capsys.readouterr().err


def spoil(site: Path, old: str, new: str) -> None:
    """Change one line of a package's plugin module."""
    path = site / "rlframe_winrate" / "plugin.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


MISTAKES = {
    "another version of the plugin API": (
        "RLFRAME_API_VERSION = 1",
        "RLFRAME_API_VERSION = 2",
        "it was written for version 2 of the plugin API, this rlframe has version 1",
    ),
    "an import that fails": (
        "from collections.abc",
        "import winrate_native\nfrom collections.abc",
        "No module named 'winrate_native' (",
    ),
    "a misspelt hook": (
        "def rlframe_components",
        "def rlframe_componets",
        "unknown hook 'rlframe_componets'. Did you mean 'rlframe_components'?",
    ),
    "a hook without its mark": (
        "@hookimpl\n",
        "",
        "'rlframe_components' is not marked: put @rlframe.hookimpl above it",
    ),
    "an argument that the hook has not": (
        "rlframe_components()",
        "rlframe_components(config)",
        "config",
    ),
    "a kind that there is not": ('"algorithm"', '"algorythm"', "algorythm"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_and_hurts_no_other(site, capsys, mistake):
    old, new, told = MISTAKES[mistake]
    spoil(site, old, new)
    plugins = listed(capsys)
    assert told in plugins["winrate"]["error"]
    assert plugins["winrate"]["components"] == []
    assert [name for name, plugin in plugins.items() if plugin["error"]] == ["winrate"]
    assert main(["validate", "--algo", "win-rate"]) == 2
    error = capsys.readouterr().err
    assert "unknown algo 'win-rate'" in error
    assert f"plugin 'winrate': {plugins['winrate']['error']}" in error
    assert main(["validate", "--rollout", "afresh"]) == 0


def test_a_name_that_is_taken_names_both_and_the_way_out(site, capsys):
    spoil(site, '"win-rate"', '"grpo"')
    assert main(["plugins"]) == 0
    conflict = "algo 'grpo' is offered by plugins 'winrate' (rlframe-winrate) and "
    assert f"conflict: {conflict}" in capsys.readouterr().out
    assert main(["validate", "--algo", "grpo"]) == 2
    error = capsys.readouterr().err
    assert conflict in error
    assert "--no-plugin" in error
    assert main(["validate", "--algo", "grpo", "--no-plugin", "winrate"]) == 0


def test_two_of_the_strangers_may_clash_too(site, capsys):
    spoil(site, '"environment",\n            "warmer"', '"rollout",\n            "afresh"')
    assert main(["validate", "--rollout", "afresh"]) == 2
    error = capsys.readouterr().err
    assert "'winrate' (rlframe-winrate)" in error
    assert "'afresh' (rlframe-afresh)" in error


def test_a_class_that_is_not_there_is_told_when_it_is_chosen(site, capsys):
    spoil(site, ":WinRate", ":WinRates")
    assert listed(capsys)["winrate"]["error"] is None
    assert main(["validate", "--algo", "win-rate"]) == 2
    assert "has no 'WinRates'. Did you mean 'WinRate'?" in capsys.readouterr().err


def test_a_package_that_it_needs_is_told_with_the_command(site):
    spoil(site, 'summary="adv', 'requires=("winrate_native",), extra="fast", summary="adv')
    component = PluginHost().load().find("algorithm", "win-rate")
    assert (component.requires, component.extra) == (("winrate_native",), "fast")
    from rlframe.host.resolve import resolve

    with pytest.raises(PluginError, match=r"pip install 'rlframe-winrate\[fast\]'"):
        resolve(PluginHost().load(), "algorithm", "win-rate")
