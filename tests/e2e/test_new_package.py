"""A package of ``rlframe new`` in a fresh environment: built, installed, found, tested, run."""

from __future__ import annotations

import json
import site
from pathlib import Path

import pytest

from rlframe_templates.new import KINDS
from tests.e2e.fresh import new_venv, run
from tests.e2e.small import make_model, make_questions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """A new environment that sees this one's packages, so that nothing is downloaded."""
    lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    return new_venv(tmp_path_factory.mktemp("fresh") / "venv", *lines)[0]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return make_model(folder / "model"), make_questions(folder / "questions.jsonl")


@pytest.mark.parametrize("kind", KINDS)
def test_it_builds_installs_is_found_passes_its_kits_and_runs(python, inputs, tmp_path, kind):
    name = f"fresh-{kind}"
    package = tmp_path / f"rlframe-{name}"
    rlframe = (python, "-m", "rlframe.cli.main")
    run(*rlframe, "new", kind, name, cwd=tmp_path)
    build = (python, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist")
    run(*build, package, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    run(python, "-m", "pip", "install", "--no-deps", wheel, cwd=tmp_path)

    listed = json.loads(run(*rlframe, "plugins", "--json", cwd=tmp_path))
    (mine,) = [plugin for plugin in listed if plugin["distribution"] == f"rlframe-{name}"]
    assert mine["error"] is None
    assert [(c["name"], c["available"]) for c in mine["components"]] == [(name, True)]

    tested = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=package)
    assert " passed" in tested
    assert "failed" not in tested

    model, questions = inputs
    words = KINDS[kind].flags.replace("NAME", name).split()
    options = ("steps=2", "data.prompts_per_step=4", "rollout.max_new_tokens=4", "run.name=run")
    data = ("--model", model, "--data", f"jsonl:{questions}")
    run(*rlframe, "fit", *words, *data, *options, cwd=tmp_path)
    summary = json.loads((tmp_path / "runs" / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 2)
    run(python, "-m", "pip", "uninstall", "-y", f"rlframe-{name}", cwd=tmp_path)
