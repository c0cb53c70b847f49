"""``rlframe new``: what it writes, and what it refuses."""

from __future__ import annotations

import ast
import tomllib

import pytest

from rlframe.cli.main import main
from rlframe_templates.new import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_is_written(kind, tmp_path, capsys):
    folder = tmp_path / "a folder"
    assert main(["new", kind, "my-thing2", "--dir", str(folder)]) == 0
    assert f"cd '{folder}'" in capsys.readouterr().out
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "rlframe-my-thing2"
    entries = project["project"]["entry-points"]["rlframe"]
    assert entries == {"my-thing2": "rlframe_my_thing2.plugin"}
    sources = sorted(folder.rglob("*.py"))
    assert len(sources) == 4
    for path in sources:
        text = path.read_text()
        assert "$" not in text
        ast.parse(text)
    assert (folder / "rlframe_my_thing2" / "py.typed").is_file()
    assert (
        "class MyThing2" in (folder / "rlframe_my_thing2" / f"{KINDS[kind].module}.py").read_text()
    )


def test_without_dir_it_lies_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "reward", "short"]) == 0
    assert (tmp_path / "rlframe-short" / "README.md").is_file()
    capsys.readouterr()
    assert main(["new", "reward", "short"]) == 2
    assert "is there and not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithmm", "x"], "Did you mean 'algorithm'?"),
        (["algorithm", "Grpo"], "no name for a package"),
        (["algorithm", "2fast"], "no name for a package"),
        (["algorithm", "a--b"], "no name for a package"),
        (["algorithm", "a/b"], "no name for a package"),
        (["algorithm", "../b"], "no name for a package"),
        (["reward", "class"], "no name for a package"),
        (["reward", ""], "no name for a package"),
        (["reward", "rlframe-acme"], "leave out 'rlframe'"),
        (["algorithm", "grpo"], "algo 'grpo' is there already"),
        (["environment", "single-turn"], "env 'single-turn' is there already"),
        (["algorithm"], "NAME"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_an_error(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert main(["new", "reward", "mine", "--dir", str(tmp_path / "file")]) == 2
    assert main(["new", "reward", "mine", "--dir", str(tmp_path / "file" / "below")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "x"
