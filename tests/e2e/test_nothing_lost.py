"""A run that ends early keeps what it has done and says how to go on; a wrong row ends none."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from rlframe.cli.main import main
from rlframe.orchestrator import Orchestrator
from tests.e2e.small import letters, make_model, make_questions, options


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_model(tmp_path / "model"), make_questions(tmp_path / "q.jsonl")


def weights(run_dir, step):
    return load_file(run_dir / f"snapshots/step-{step:06d}/policy/rank-00000.safetensors")


def test_a_reward_that_fails_in_the_middle_loses_no_step(small, tmp_path):
    whole = rlframe.fit(**options(tmp_path / "whole", *small, steps=4))
    calls = iter(range(100))

    def fails_in_step_3(response):
        if next(calls) >= 2 * 4 * 2:
            raise ValueError("mine")
        return letters(response)

    given = options(tmp_path / "my runs", *small, steps=4)
    with pytest.raises(rlframe.RewardError, match="mine") as caught:
        rlframe.fit(**given | {"reward": fails_in_step_3})
    folder = tmp_path / "my runs" / "runs" / "run"
    assert caught.value.__notes__ == [
        f"saved is step-000002. Go on with: rlframe fit --resume '{folder}'"
    ]
    assert json.loads((folder / "summary.json").read_text())["status"].startswith("failed")
    done = rlframe.fit(**given, resume=folder)
    assert done.summary["steps"] == 4
    expected = weights(whole.run_dir, 4)
    assert all(torch.equal(t, expected[n]) for n, t in weights(done.run_dir, 4).items())


def fails_in(monkeypatch, method: str) -> None:
    """In the third step."""
    plain = getattr(Orchestrator, method)

    def fails(self, *arguments):
        if self.step == 2:
            raise RuntimeError("mine")
        return plain(self, *arguments)

    monkeypatch.setattr(Orchestrator, method, fails)


@pytest.mark.parametrize(("method", "last"), [("_update", 2), ("publish", 3)])
def test_what_failed_inside_an_update_is_not_saved(method, last, small, tmp_path, monkeypatch):
    """The weights may have changed: snapshots are of whole steps; what follows them loses none."""
    given = options(tmp_path, *small, steps=4)
    given["run"] |= {"save_every": 1}
    fails_in(monkeypatch, method)
    with pytest.raises(RuntimeError, match="mine") as caught:
        rlframe.fit(**given)
    assert [f"step-{last:06d}" in note for note in caught.value.__notes__] == [True]
    kept = sorted(path.name for path in (tmp_path / "runs/run/snapshots").iterdir())
    assert kept == [f"step-{last - 1:06d}", f"step-{last:06d}"]


def test_a_run_that_fails_at_once_names_no_snapshot(small, tmp_path):
    def fails(response):
        raise ValueError("mine")

    with pytest.raises(rlframe.RewardError) as caught:
        rlframe.fit(**options(tmp_path, *small) | {"reward": fails})
    assert not getattr(caught.value, "__notes__", [])


def test_the_command_line_tells_where_it_was_saved(small, tmp_path, capsys):
    model, questions = small
    (tmp_path / "mine.py").write_text(
        "calls = 0\n"
        "def reward(response):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    return 1 / (calls <= 4)\n"
    )
    words = f"--algo grpo --model {model} --data {questions} --reward mine.py:reward steps=3"
    more = "algo.samples_per_prompt=2 data.prompts_per_step=2 rollout.max_new_tokens=2"
    assert main(["fit", *words.split(), *more.split(), "run.name=r", "run.dir=my runs"]) == 1
    error = capsys.readouterr().err
    assert error.count("rlframe: error: ") == 1
    assert "ZeroDivisionError" in error
    assert error.endswith("Go on with: rlframe fit --resume 'my runs/r'\n")
    assert "Traceback" not in error


LATE = {
    "no prompt": {"question": "a"},
    "a number": {"prompt": 3},
    "null": {"prompt": None},
    "a long prompt": {"prompt": "a" * 3000, "answer": "1"},
    "messages": {"prompt": [{"role": "user", "content": "a"}], "answer": "1"},
    "bad messages": {"prompt": [{"role": "user"}], "answer": "1"},
    "no answer": {"prompt": "ab"},
}


@pytest.mark.parametrize("key", ["train", "validate"])
@pytest.mark.parametrize("name", LATE)
def test_a_wrong_row_late_in_the_data_ends_the_command_before_a_model(
    small, tmp_path, monkeypatch, name, key
):
    model, questions = small
    bad = make_questions(tmp_path / "bad.jsonl", rows=30)
    bad.write_text(bad.read_text() + json.dumps(LATE[name]) + "\n")
    monkeypatch.setattr("rlframe.build.start_groups", lambda *_: pytest.fail("models started"))
    given = options(tmp_path, model, questions) | {f"data.{key}": str(bad), "reward": "exact"}
    if key == "train":
        del given["data"]
    with pytest.raises(rlframe.RlframeError, match=r"bad\.jsonl:31: ") as caught:
        rlframe.fit(**given)
    assert "\n" not in str(caught.value)


def test_rows_without_an_answer_are_left_out_where_that_is_asked_for(small, tmp_path):
    model, questions = small
    with questions.open("a") as file:
        file.write(json.dumps({"prompt": "zz"}) + "\n")
    given = options(tmp_path, model, questions, steps=3) | {"reward": "exact"}
    done = rlframe.fit(**given, **{"reward.on_error": "skip"})
    lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["collect/skipped_episodes"] for line in lines) == 2


def test_skipping_everything_says_why(small, tmp_path):
    def fails(response):
        raise ValueError("mine")

    given = options(tmp_path, *small) | {"reward": fails}
    with pytest.raises(rlframe.TrainingError, match="last fault: .*raised ValueError: mine") as one:
        rlframe.fit(**given, **{"reward.on_error": "skip"})
    assert "\n" not in str(one.value)


@pytest.mark.parametrize(
    "template", ["{prompt:d}", "{prompt!z}", "{prompt:{answer}d}", "{}", "{0}", "{prompt.x}", "{a"]
)
def test_a_wrong_template_is_one_line(small, tmp_path, template):
    given = options(tmp_path, *small)
    with pytest.raises(rlframe.RlframeError, match=r"data\.template") as caught:
        rlframe.fit(**given, **{"data.template": template})
    assert "\n" not in str(caught.value)


BROKEN = """
from rlframe.interfaces.data import Dataset

class Broken(Dataset):
    def __init__(self):
        self.rows = [{{"prompt": "a"}}] * 3

    @classmethod
    def open(cls, uri):
        {open}
        return cls()

    def __len__(self):
        {len}
        return 3

    def __getitem__(self, index):
        {item}
        return self.rows[index]

    @property
    def fingerprint(self):
        return "x"
"""


@pytest.mark.parametrize("method", ["open", "len", "item"])
def test_a_data_set_of_ones_own_that_raises_is_one_line(small, tmp_path, method):
    raises = {name: "pass" for name in ("open", "len", "item")} | {method: "raise KeyError('mine')"}
    (tmp_path / "broken.py").write_text(BROKEN.format(**raises))
    given = options(tmp_path, *small) | {"data": "broken.py:Broken"}
    with pytest.raises(rlframe.RlframeError, match=r"raised KeyError: 'mine' \(.*broken") as caught:
        rlframe.fit(**given)
    assert "\n" not in str(caught.value)


def test_a_working_directory_that_is_gone_is_one_line(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["fit", "--algo", "grpo"]) == 2
    assert "the working directory is gone" in capsys.readouterr().err
