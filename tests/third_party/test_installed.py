"""Wheels of strangers in the environment that ``make test-install`` makes: installed by pip, tested
by rlframe's kits, run.
"""  # noqa: D205

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.fresh import run as run_fresh
from tests.third_party.wheels import PACKAGES, copied, wheel

PYTHON = Path(os.environ.get("RLFRAME_INSTALLED", ""))
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.is_file(), reason="make test-install: an environment of its own"),
]


def run(*command, cwd: Path) -> str:
    """A module of that environment."""
    return run_fresh(PYTHON, "-m", *command, cwd=cwd)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Both are installed from their wheels, what they require among it; sources for their tests."""
    folder = tmp_path_factory.mktemp("strangers")
    sources = {package: copied(package, folder) for package in PACKAGES}
    wheels = [wheel(source, folder / "dist") for source in sources.values()]
    run("pip", "install", "--force-reinstall", "--no-deps", *wheels, cwd=folder)
    run("pip", "check", cwd=folder)
    yield sources
    run("pip", "uninstall", "--yes", *PACKAGES, cwd=folder)


@pytest.mark.parametrize("package", PACKAGES)
def test_its_own_tests_pass(sources, package, tmp_path):
    (tmp_path / "tests").mkdir()
    for path in (sources[package] / "tests").glob("*.py"):
        (tmp_path / "tests" / path.name).write_text(path.read_text())
    told = run("pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=tmp_path)
    assert " passed" in told
    assert "failed" not in told


def test_they_are_listed(sources, tmp_path):
    plugins = json.loads(run("rlframe", "plugins", "--json", cwd=tmp_path))
    found = {plugin["distribution"]: plugin["error"] for plugin in plugins}
    assert {package: found[package] for package in PACKAGES} == dict.fromkeys(PACKAGES)


def test_they_run_and_go_on(sources, tmp_path):
    words = ("--algo", "win-rate", "--reward", "near", "--env", "warmer", "--rollout", "afresh")
    words += ("--scheduler", "bursts", "scheduler.steps=3", "data.prompts_per_step=4")
    words += ("rollout.max_new_tokens=4", "run.name=run", "data.validate=null")
    run("rlframe", "fit", *words, "steps=4", "run.save_every=2", cwd=tmp_path)
    run("rlframe", "fit", "--resume", "runs/run", "steps=5", cwd=tmp_path)
    summary = json.loads((tmp_path / "runs" / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 5)
