"""Replay answers what was recorded, or says clearly that it cannot."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch

from rlframe.config import ModelConfig
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Completion, Request
from rlframe.weights.layout import Layout, ParamInfo
from rlframe_plugins.rollouts.replay import ReplayRollout

ROWS = [
    {
        "prompt_ids": [5, 6],
        "group_id": 3,
        "episode_id": 3000 + i,
        "token_ids": [9, i],
        "logprobs": [-0.5, -1.0 - i],
        "versions": [2, 2],
        "finish_reason": "length" if i else "stop",
        "reward": 1.0,
    }
    for i in range(2)
]


@pytest.fixture
def write(tmp_path):
    def write(*steps):
        (tmp_path / "rollouts").mkdir()
        for number, rows in enumerate(steps, 1):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / "rollouts" / f"step-{number:06d}.jsonl").write_text(text)
        config = ReplayRollout.Config(run=str(tmp_path))
        return ReplayRollout(config, RolloutSpec("x", ModelConfig(path="x")))

    return write


def ask(engine, prompt, group, episode):
    request = Request(tuple(prompt), group_id=group, episode_id=episode)
    return asyncio.run(engine.generate(request))


def test_answers_by_group_and_episode_over_steps(write):
    later = {**ROWS[0], "group_id": 4, "episode_id": 4000, "versions": [3, 3]}
    engine = write(ROWS, [later])
    assert ask(engine, [5, 6], 3, 3001) == Completion((9, 1), (-0.5, -2.0), (2, 2), "length")
    assert ask(engine, [5, 6], 3, 3000).finish_reason == "stop"
    assert ask(engine, [5, 6], 4, 4000).versions == (3, 3)
    assert engine.stats() == {"requests": 3, "prompt_tokens": 6, "response_tokens": 6}


def test_turns_of_an_episode_come_one_by_one(write):
    row = {
        **ROWS[0],
        "token_ids": [9, 8, 70, 71, 4],
        "logprobs": [-0.1, -0.2, 0.0, 0.0, -0.3],
        "versions": [2, 2, -1, -1, 3],
        "finish_reason": "length",
    }
    engine = write([row])
    first, second = (ask(engine, p, 3, 3000) for p in ([5, 6], [5, 6, 9, 8, 70, 71]))
    assert first == Completion((9, 8), (-0.1, -0.2), (2, 2), "stop")
    assert second == Completion((4,), (-0.3,), (3,), "length")


def test_a_missing_episode_is_named(write):
    with pytest.raises(RolloutError, match="episode 3002 of group 3.*samples_per_prompt"):
        ask(write(ROWS), [5, 6], 3, 3002)


@pytest.mark.parametrize("prompt", [[5, 7], [5], [5, 6, 9, 9], [5, 6, 9, 0, 0]])
def test_another_prompt_is_refused_with_its_place(write, prompt):
    with pytest.raises(RolloutError, match=r"step-000001.jsonl:1.*\[5, 6\]"):
        ask(write(ROWS), prompt, 3, 3000)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"prompt_ids": [1]}', json.dumps({**ROWS[0], "versions": [1]})]
)
def test_a_damaged_line_is_named(write, tmp_path, text):
    (tmp_path / "rollouts").mkdir()
    path = tmp_path / "rollouts" / "step-000002.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + text + "\n")
    config = ReplayRollout.Config(run=str(tmp_path))
    with pytest.raises(RolloutError, match="step-000002.jsonl:2"):
        ReplayRollout(config, RolloutSpec("x", ModelConfig(path="x")))


def test_the_config_must_name_a_run_with_rollouts(tmp_path):
    with pytest.raises(ValueError, match="run is empty"):
        ReplayRollout.Config()
    with pytest.raises(ValueError, match=f"no rollouts.*{tmp_path}.*dump_rollouts"):
        ReplayRollout.Config(run=str(tmp_path))


def test_takes_any_version_and_layout(write):
    engine = write(ROWS)
    assert engine.version == -1
    engine.load(7, {"anything": torch.zeros(1)})
    assert engine.version == 7
    layout = Layout.full({"w": ParamInfo((2,), "float32")}, 2)
    assert engine.layout(layout) is layout
