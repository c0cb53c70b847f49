"""Data of several kinds, each scored by the reward that is for it."""

from __future__ import annotations

import json

import pytest

import rlframe
from tests.e2e.small import make_model, make_questions, options


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def figures(folder, model, **more) -> dict:
    given = options(folder, model, "", **more)
    given["data.max_prompt_tokens"] = 256
    fit = rlframe.fit(**given | {"steps": 1})
    return json.loads((fit.run_dir / "metrics.jsonl").read_text().splitlines()[-1])


def test_a_mixture_with_rewards_by_source(tmp_path, model):
    make_questions(tmp_path / "sums.jsonl")
    (tmp_path / "words.csv").write_text("prompt,solution\nab,b\ncd,d\n")
    seen = figures(
        tmp_path,
        model,
        data=f"mix:3*{tmp_path}/sums.jsonl + {tmp_path}/words.csv",
        reward=[
            {"name": "number", "when": {"data_source": "sums"}},
            {"name": "exact", "label": "word", "when": {"data_source": "words"}},
            {"name": "length", "max_tokens": 3, "weight": 0.5},
        ],
    )
    assert {name for name in seen if name.startswith("reward/")} >= {
        "reward/number/mean",
        "reward/word/mean",
        "reward/length/mean",
    }
    assert -0.5 <= seen["critic/rewards/mean"] <= 1


def test_a_source_without_a_reward_is_known_before_the_run(tmp_path, model):
    make_questions(tmp_path / "sums.jsonl")
    (tmp_path / "words.csv").write_text("prompt,solution\nab,b\n")
    with pytest.raises(rlframe.RewardError, match="no reward is for this row"):
        figures(
            tmp_path,
            model,
            data=f"mix:{tmp_path}/sums.jsonl + {tmp_path}/words.csv",
            reward=[{"name": "number", "when": {"data_source": "sums"}}],
        )


def test_tasks_of_reasoning_gym(tmp_path, model):
    pytest.importorskip("reasoning_gym", reason="needs the extra 'reasoning-gym'")
    seen = figures(
        tmp_path, model, data="reasoning_gym:chain_sum?size=8&seed=1", reward="reasoning-gym"
    )
    assert 0 <= seen["reward/reasoning-gym/mean"] <= 1


def test_a_folder_of_the_datasets_library(tmp_path, model):
    datasets = pytest.importorskip("datasets", reason="needs the extra 'datasets'")
    rows = datasets.Dataset.from_list([{"prompt": "ab", "reward_model": {"ground_truth": "1"}}])
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "saved")
    seen = figures(tmp_path, model, data=f"hf:{tmp_path}/saved?split=test", reward="number")
    assert 0 <= seen["reward/number/mean"] <= 1


def test_demonstrations_with_the_columns_of_trl(tmp_path, model):
    lines = [{"prompt": "ab", "completion": "cd"}, {"prompt": "ef", "completion": "gh"}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    chat = [{"prompt": "ab", "completion": [{"role": "assistant", "content": "cd"}]}]
    (tmp_path / "y.jsonl").write_text("".join(json.dumps(line) + "\n" for line in chat))
    for file, column in (("x", "completion"), ("y", "completion.0.content")):
        seen = figures(
            tmp_path,
            model,
            data=f"{tmp_path}/{file}.jsonl",
            algo={"name": "sft"},
            run={"dir": str(tmp_path / "runs"), "name": file},
            **{"data.columns": {"response": column}},
        )
        assert seen["actor/nll"] > 0
