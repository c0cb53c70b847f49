"""A run goes on from any working directory: its folder keeps where data and model lie."""

from __future__ import annotations

import json

import pytest

import rlframe
from tests.e2e.small import letters, make_model, make_questions, options


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working directory with blanks in its name, and relative paths in it."""
    here = tmp_path / "my work"
    make_model(here / "a model")
    make_questions(here / "data" / "q? 1.jsonl")
    (here / "more.csv").write_text("prompt,answer\nxy,1\nyz,2\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(here)
    return here


def steps(run_dir):
    return [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").open()]


@pytest.mark.parametrize("data", ["data/q? 1.jsonl", "mix:3*data/q? 1.jsonl + more.csv"])
def test_resume_from_another_folder(home, monkeypatch, data):
    given = options(home, "a model", "", data=data, reward=letters) | {
        "run": {"dir": "runs", "name": "run"},
        "data.validate": "more.csv",
    }
    first = rlframe.fit(**given | {"steps": 1})
    monkeypatch.chdir(home.parent / "elsewhere")
    again = rlframe.fit(resume=home / first.run_dir, reward=letters, steps=3)
    assert again.run_dir == home / "runs" / "run"
    assert steps(again.run_dir)[-3:] == [1, 2, 3]


def test_auto_goes_on_with_the_run_of_these_files_only(home, monkeypatch, capsys):
    runs = str(home / "runs")
    given = options(home, "a model", "", data="more.csv", reward=letters) | {"run": {"dir": runs}}
    first = rlframe.fit(**given | {"steps": 1})
    assert rlframe.fit(**given, resume="auto").run_dir == first.run_dir
    (home / "sub").mkdir()
    make_model(home / "sub" / "a model")
    (home / "sub" / "more.csv").write_text("prompt,answer\nzz,9\n")
    monkeypatch.chdir(home / "sub")
    assert rlframe.fit(**given, resume="auto").run_dir != first.run_dir
