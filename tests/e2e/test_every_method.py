"""``rlframe fit --algo NAME`` for every registered method, also those that come later."""

from __future__ import annotations

import json
import math

import pytest

from rlframe.cli.main import main
from rlframe.host.host import current_host
from tests.e2e.small import make_model
from tests.e2e.test_reward_model import reward_model

NEEDS = {
    "distill": ("roles.teacher.model.path={other}",),
    "safe-rlhf": ("roles.cost.model.path={scorer}",),
    "vapo": ("algo.critic_warmup=1",),
}
"""What a method cannot run (or, in two steps, learn) without, beside data for any method."""

REWARD = "def letters(response):\n    return sum(c in 'abcdefg' for c in response) / 6\n"


def rows(number=8):
    """Prompts with answers, written responses and labelled pairs."""
    for n in range(number):
        texts = {"prompt": f"a{n}b", "answer": str(n), "response": "abc" * (n % 3 + 1)}
        pair = {"chosen": f"abc{n}", "rejected": f"{n}xyz"}
        yield texts | pair | {"chosen_safe": n % 2 == 0, "rejected_safe": n % 3 == 0}


def make_inputs(folder):
    """Models, data and a reward by the names that command lines use."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    (folder / "good.py").write_text(REWARD)
    return {
        "model": make_model(folder / "model"),
        "other": make_model(folder / "other", seed=1),
        "scorer": reward_model(folder / "scorer"),
        "data": folder / "rows.jsonl",
        "reward": f"{folder / 'good.py'}:letters",
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def fit(name, inputs, folder, *more):
    """Run the command line, on which a method keeps its defaults; the lines of each step."""
    flags = f"--algo {name} --model {{model}} --data jsonl:{{data}} --logger jsonl"
    small = "steps=2 data.prompts_per_step=4 rollout.max_new_tokens=4 cluster.threads=1"
    parts = (*flags.split(), *small.split(), *NEEDS.get(name, ()), *more)
    where = (f"run.dir={folder}", "run.name=run")
    assert main(["fit", *(part.format(**inputs) for part in parts), *where]) == 0
    return learned(folder / "run")


def learned(run):
    """The lines of steps, all finite, of a run that finished."""
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "timing_s/step" in line]
    for line in steps:
        assert not [key for key, value in line.items() if not math.isfinite(value)]
    assert any(line.get("actor/grad_norm", 0) > 0 for line in steps)
    return steps


@pytest.mark.parametrize("name", current_host().components("algorithm"))
def test_a_method_runs_by_its_name_and_goes_on(name, inputs, tmp_path):
    steps = fit(name, inputs, tmp_path, "--reward", "{reward}")
    assert [line["training/global_step"] for line in steps] == [1, 2]
    assert main(["fit", "--resume", str(tmp_path / "run"), "steps=3"]) == 0
    assert [line["training/global_step"] for line in learned(tmp_path / "run")] == [1, 2, 3]


def test_a_teacher_apart_is_refused_before_a_model_starts(inputs, capsys):
    pytest.importorskip("ray")
    places = "--cluster ray --algo distill pools.second.devices=1 roles.teacher.pool=second"
    parts = ("--model", str(inputs["model"]), "--data", f"jsonl:{inputs['data']}")
    teacher = f"roles.teacher.model.path={inputs['other']}"
    assert main(["validate", *places.split(), *parts, teacher]) == 2
    error = capsys.readouterr().err
    assert "roles.teacher.pool=second: 'policy' is measured from 'teacher'" in error
    assert "set roles.teacher.pool=train" in error
