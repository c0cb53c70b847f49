"""What a config names is checked on the first rows alike by validate and fit, before a model."""

from __future__ import annotations

import pytest

import rlframe
from rlframe.cli.main import main
from tests.e2e.small import make_model, make_questions, options


def test_a_mistyped_model_makes_no_run(tmp_path, monkeypatch):
    make_model(tmp_path / "llama")
    monkeypatch.chdir(tmp_path)
    questions = make_questions(tmp_path / "q.jsonl")
    with pytest.raises(rlframe.ModelError, match=r"no folder 'lama'\. Did you mean 'llama'\?"):
        rlframe.fit(**options(tmp_path, "lama", questions))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("key", ["data.train", "data.validate"])
def test_data_without_the_response_of_an_offline_method(tmp_path, monkeypatch, capsys, key):
    model = make_model(tmp_path / "model")
    bad = make_questions(tmp_path / "bad.jsonl")
    good = tmp_path / "good.jsonl"
    good.write_text('{"prompt": "a", "response": "b"}\n')
    monkeypatch.setattr("rlframe.build.start_groups", lambda *_: pytest.fail("models started"))
    monkeypatch.chdir(tmp_path)
    words = ["--algo", "sft", "--model", str(model), "--data", str(good), f"{key}={bad}"]
    if key == "data.train":
        words[5] = str(bad)
        words.pop()
    for command in ("validate", "fit"):
        assert main([command, *words]) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert "bad.jsonl:1: no column 'response' to learn from" in error
        assert "algo.response_key=COLUMN" in error


def test_a_finished_run_is_not_run_again(tmp_path, capsys):
    model = make_model(tmp_path / "model")
    given = options(tmp_path, model, make_questions(tmp_path / "q.jsonl"), steps=1)
    first = rlframe.fit(**given)
    lines = (first.run_dir / "metrics.jsonl").read_text()
    capsys.readouterr()
    again = rlframe.fit(**given, resume=first.run_dir)
    said = capsys.readouterr().out
    assert said == (
        f"the run {first.run_dir} is finished at step 1: give steps=N above 1 to go on\n"
    )
    assert again.summary == first.summary
    assert (first.run_dir / "metrics.jsonl").read_text() == lines
    more = rlframe.fit(**given | {"steps": 2}, resume=first.run_dir)
    assert more.summary["steps"] == 2
