"""Safe RLHF with models as reward and cost, a second data set, and a run that is continued."""

from __future__ import annotations

import json

import pytest

import rlframe
from rlframe.errors import ConfigError
from tests.e2e.small import letters, make_model, make_questions, options
from tests.e2e.test_reward_model import reward_model

COST = "actor/lagrange_multiplier"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def given(tmp_path, model, **more):
    made = options(tmp_path, model, make_questions(tmp_path / "questions.jsonl"))
    texts = "".join(json.dumps({"prompt": f"a{n}", "response": "abc"}) + "\n" for n in range(9))
    (tmp_path / "texts.jsonl").write_text(texts)
    made["algo"] = {"name": "safe-rlhf", "samples_per_prompt": 2, "ptx_coef": 0.5}
    made["data.second"] = f"jsonl:{tmp_path / 'texts.jsonl'}"
    made["data.second_per_prompt"] = 2
    made["optim.lr"] = 1e-3
    return {**made, **more}


def figures(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {int(one["training/global_step"]): one for one in lines if COST in one}


def test_a_continued_run_is_the_run_that_was_not_stopped(tmp_path, model):
    scorer = reward_model(tmp_path / "cm")
    more = {"roles": {"cost": {"model": {"path": str(scorer)}}}}
    whole = rlframe.fit(**given(tmp_path / "a", model, **more, steps=4))
    part = rlframe.fit(**given(tmp_path / "b", model, **more, steps=2))
    rest = rlframe.fit(resume=part.run_dir, steps=4)
    wanted, got = figures(whole.run_dir), figures(rest.run_dir)
    assert wanted[4][COST] != wanted[1][COST]
    for name in (COST, "actor/episode_cost", "actor/ptx_loss", "costs/mean", "actor/pg_loss"):
        assert got[4][name] == pytest.approx(wanted[4][name], rel=1e-6, abs=1e-9), name


def test_a_reward_part_may_be_the_cost_and_the_text_is_learned(tmp_path, model):
    parts = [{"name": "length", "max_tokens": 2, "weight": -1.0, "into": "costs"}]
    (tmp_path / "good.py").write_text(
        "def letters(response):\n    return sum(c in 'abcdefg' for c in response) / 6\n"
    )
    parts.append({"name": f"{tmp_path / 'good.py'}:letters"})
    done = figures(rlframe.fit(**given(tmp_path, model, reward=parts, steps=6)).run_dir)
    assert done[6]["actor/ptx_loss"] < done[1]["actor/ptx_loss"]
    assert 0 <= done[1]["actor/episode_cost"] <= 1
    assert done[1]["reward/length/mean"] == pytest.approx(-done[1]["actor/episode_cost"])


def test_both_models_score_without_any_other_reward(tmp_path, model):
    scorer = str(reward_model(tmp_path / "cm"))
    made = given(tmp_path, model, steps=1)
    del made["reward"]
    made["roles"] = {name: {"model": {"path": scorer}} for name in ("reward", "cost")}
    done = figures(rlframe.fit(**made).run_dir)
    assert done[1]["critic/rewards/mean"] == pytest.approx(done[1]["costs/mean"], rel=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "safe-rlhf needs a cost for every response.*roles.cost.model.path=PATH"),
        ({"data.second": None}, "algo.ptx_coef and data.second need each other"),
    ],
)
def test_what_lacks_is_said_before_the_run(tmp_path, model, change, said):
    made = given(tmp_path, model, **change)
    if change:
        made["roles"] = {"cost": {"model": {"path": str(model)}}}
    with pytest.raises(ConfigError, match=said):
        rlframe.fit(**made)


def test_a_method_without_a_term_on_it_refuses_a_second_data_set(tmp_path, model):
    made = given(tmp_path, model, algo="grpo", reward=letters)
    with pytest.raises(ConfigError, match="GRPO has no term on a second data set"):
        rlframe.fit(**made)
