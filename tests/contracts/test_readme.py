"""Everything that the README shows is run: its Python, its commands, its files."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(README)
FILES = {
    match[1]: body
    for language, body in BLOCKS
    if language == "python" and (match := re.match(r"# (\w+\.py)\n", body))
}
SCRIPTS = [body for lang, body in BLOCKS if lang == "python" and not body.startswith("# ")]
COMMANDS = [
    line.removeprefix("$ ")
    for lang, body in BLOCKS
    if lang == "console"
    for line in body.splitlines()
    if line.startswith("$ ")
]
MODEL = "pkg:rlframe_templates/models/tiny"


@pytest.fixture
def folder(tmp_path):
    for name, body in FILES.items():
        (tmp_path / name).write_text(body)
    rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(40)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "questions.jsonl").write_text(text)
    return tmp_path


def run(arguments, folder):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, timeout=240, env=env, check=False
    )


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("rlframe fit")])
def test_fit_commands_run(command, folder):
    words = shlex.split(command)[1:]
    words = [MODEL if word == "path/to/model" else word for word in words]
    words = [re.sub(r"^steps=\d+$", "steps=1", word) for word in words]
    done = run([sys.executable, "-m", "rlframe", *words], folder)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("pytest")])
def test_tests_pass(command, folder):
    done = run([sys.executable, "-m", *command.split(), "-rs", "-p", "no:cacheprovider"], folder)
    assert done.returncode == 0, done.stderr + done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 20


def test_the_test_of_the_method_is_two_classes():
    assert re.findall(r"^class (\w+)", FILES["test_my_method.py"], re.MULTILINE) == [
        "TestMyMethod",
        "TestWithOptions",
    ]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run(script, folder):
    done = run([sys.executable, "-c", script], folder)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_targets_exist(command):
    target = command.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_method_is_about_twenty_lines():
    body = FILES["my_method.py"].split("\n", 1)[1]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20


def test_every_listed_component_exists_and_none_is_missing():
    """The table names what ``rlframe plugins`` lists, both ways."""
    from rlframe.host.host import current_host

    names = {component.name for info in current_host().plugins for component in info.components}
    table = README.split("## What there is")[1].split("## Limits")[0]
    cells = [row.split("|")[2] for row in table.splitlines() if row.startswith("|")]
    shown = {name for cell in cells for name in re.findall(r"`([A-Za-z0-9_+-]+)(?::[^`]*)?`", cell)}
    assert shown == names - {"causal-lm"}


def test_links_point_to_files():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_dotted_names_can_be_imported():
    """``rlframe.testing.AlgorithmKit`` and the like, wherever the README names them."""
    from importlib import import_module

    named = set(re.findall(r"`(rlframe(?:\.\w+)*\.\w+)[`(]", README))
    assert "rlframe.testing.AlgorithmKit" in named
    for path in named:
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(module), name), path


def test_every_kit_is_public():
    import rlframe.testing

    for name in rlframe.testing.__all__:
        assert callable(getattr(rlframe.testing, name))
