"""``rlframe eval`` on a model and on a run: the run's own policy, its reward, reproducible."""

from __future__ import annotations

import json

import pytest

import rlframe
from rlframe.cli.main import main
from rlframe.requests import Episode, Group, Request, Row, Sampling
from tests.e2e.small import make_model, make_questions, options

REWARD = "tests.e2e.small:letters"
SHORT = ("rollout.max_new_tokens=4", "cluster.threads=1")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return make_model(folder / "model"), make_questions(folder / "questions.jsonl")


def report(capsys, *words) -> dict:
    assert main(["eval", *map(str, words), "--json", *SHORT]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model(inputs, tmp_path, capsys):
    model, questions = inputs
    saved = tmp_path / "responses.jsonl"
    words = (model, "--data", questions, "--reward", REWARD, "--samples", 4, "--threshold", 0.1)
    first = report(capsys, *words, "--save", saved)
    names = ["accuracy", "pass@2", "maj@2", "pass@4", "maj@4"]
    assert list(first["estimates"]) == names
    lines = [json.loads(line) for line in saved.read_text().splitlines()]
    assert len(lines) == 8 * 4
    right = sum(line["reward"] >= 0.1 for line in lines)
    assert 0 < right < 32, "neither all nor nothing, else this checks little"
    assert first["estimates"]["accuracy"]["value"] == pytest.approx(right / 32)
    by_prompt = [lines[i : i + 4] for i in range(0, 32, 4)]
    passed = [any(line["reward"] >= 0.1 for line in four) for four in by_prompt]
    assert first["estimates"]["pass@4"]["value"] == pytest.approx(sum(passed) / 8)
    assert report(capsys, *words)["estimates"] == first["estimates"]


def test_one_sample_is_greedy_and_limited(inputs, capsys):
    model, questions = inputs
    words = (model, "--data", questions, "--reward", REWARD, "--limit", 3)
    found = report(capsys, *words)
    assert found["temperature"] == 0
    assert found["estimates"]["accuracy"]["prompts"] == 3
    assert report(capsys, *words, "seed=7")["figures"]["reward/mean"] == pytest.approx(
        found["figures"]["reward/mean"]
    )


def test_a_run_is_evaluated_with_what_it_learned(inputs, tmp_path, capsys):
    model, questions = inputs
    run = rlframe.fit(
        **options(tmp_path, model, questions, optim={"lr": 3e-2, "schedule": "constant"}, steps=12)
    ).run_dir
    capsys.readouterr()
    words = ("--data", questions, "--samples", 2)
    learned = report(capsys, run, *words)
    snapshot = next((run / "snapshots").iterdir())
    assert report(capsys, snapshot, *words)["figures"]["reward/mean"] == pytest.approx(
        learned["figures"]["reward/mean"]
    )
    started = report(capsys, model, *words, "--reward", REWARD)
    assert learned["figures"]["reward/mean"] > started["figures"]["reward/mean"] + 0.1
    exported = tmp_path / "exported"
    assert main(["export", str(run), str(exported)]) == 0
    capsys.readouterr()
    same = report(capsys, exported, *words, "--reward", REWARD)
    assert same["figures"]["reward/mean"] == pytest.approx(learned["figures"]["reward/mean"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "eval needs a model or a run"),
        (["seed=1"], "eval needs a model or a run"),
        (["MODEL", "--data", "QUESTIONS", "--samples", "0"], "--samples"),
        (["MODEL", "--data", "QUESTIONS", "--answer", "("], "no regular expression"),
        (["MODEL", "--data", "QUESTIONS", "--sample", "4"], "Did you mean '--samples'?"),
        (["MODEL", "--data", "QUESTIONS", "--reward", "exact", "reward.column=a"], "column 'a'"),
        (["MODEL", "--data", "jsonl:nope.jsonl"], "nope.jsonl"),
        (["MODEL", "--model", "x"], "--model is the first word"),
        (["./nope", "--data", "QUESTIONS"], "there is no folder './nope'."),
        (["PARENT", "--data", "QUESTIONS"], "has no config.json"),
    ],
)
def test_mistakes_are_one_line(inputs, capsys, words, message):
    model, questions = inputs
    known = {"MODEL": str(model), "QUESTIONS": str(questions), "PARENT": str(model.parent)}
    assert main(["eval", *(known.get(word, word) for word in words)]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_help_lists_the_flags(capsys):
    assert main(["eval", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--samples" in shown
    assert "--data" in shown


def test_what_was_not_scored_is_counted():
    from rlframe.evaluating.evaluate import EvalOptions, summarise

    row = Row((1,), {"prompt": "p"}, 0, Sampling())

    def group(*rewards):
        return Group(row, [Episode(Request((1,)), [], "stop", "1", reward) for reward in rewards])

    estimates, figures = summarise(
        [group(1.0, 0.0), group(1.0), group()], EvalOptions(samples=2), seed=0
    )
    assert figures["unscored"] == 3
    assert estimates["accuracy"].value == pytest.approx(0.75)
    assert estimates["accuracy"].prompts == 2
    assert estimates["pass@2"].prompts == 1
    assert estimates["pass@2"].value == 1.0
    with pytest.raises(rlframe.RewardError, match="no response was scored"):
        summarise([group()], EvalOptions())
