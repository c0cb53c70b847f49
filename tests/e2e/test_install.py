"""sdist and wheel build, and what they hold is enough to run, away from the checkout.

What the packages need is this environment's; ``make test-install`` installs them anew as well.
"""

from __future__ import annotations

import json
import site
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.e2e.fresh import new_venv, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PARTS = ("rlframe", "algorithms/rlframe_algorithms", "strategies/rlframe_strategies")
PARTS += ("plugins/rlframe_plugins", "templates/rlframe_templates")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def tracked() -> set[str]:
    """Files of the five packages by their path in a wheel."""
    done = subprocess.run(
        ["git", "ls-files", *PARTS], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        pytest.skip("no git checkout")
    outer = tuple(part.rpartition("/")[0] + "/" for part in PARTS[1:])
    names = set()
    for line in done.stdout.splitlines():
        if (ROOT / line).exists():
            names.add(next((line.removeprefix(o) for o in outer if line.startswith(o)), line))
    return names


def test_the_wheel_has_every_file_of_the_packages_and_no_other(built):
    _, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        inside = {n for n in archive.namelist() if ".dist-info/" not in n}
        text = {n.rpartition("/")[2] for n in archive.namelist() if ".dist-info/" in n}
    assert tracked() - inside == set()
    assert {name.partition("/")[0] for name in inside} == {p.rpartition("/")[2] for p in PARTS}
    assert {"METADATA", "entry_points.txt", "LICENSE"} <= text


def test_the_source_archive_has_what_tests_and_docs_need(built):
    sdist, _ = built
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt"}
    wanted |= {"tests/e2e/test_install.py", "docs/install.md"}
    assert wanted <= inside
    assert not any(name.startswith((".venv", ".git/", "shared/")) for name in inside)


def test_the_wheel_installs_and_runs(built, tmp_path):
    # Folders alone: no .pth of theirs is read, so that the checkout is not on the way.
    python, packages = new_venv(tmp_path / "venv", *site.getsitepackages())
    run(python, "-m", "pip", "install", "--no-deps", built[1], cwd=tmp_path)
    place = run(python, "-c", "import rlframe; print(rlframe.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(packages)

    rlframe = python.parent / "rlframe"
    told = json.loads(run(rlframe, "doctor", "--json", cwd=tmp_path))
    assert told["ok"]
    plugins = json.loads(run(rlframe, "plugins", "--json", cwd=tmp_path))
    mine = [p for p in plugins if p["distribution"] == "rlframe"]
    assert [p["error"] for p in mine] == [None] * 4
    words = ["steps=1", "data.prompts_per_step=2", "rollout.max_new_tokens=4", "run.name=run"]
    run(rlframe, "fit", "--algo", "grpo", *words, cwd=tmp_path)
    summary = json.loads((tmp_path / "runs" / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 1)
