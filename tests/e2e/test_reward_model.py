"""A reward model as a role, by config alone: for any method that samples."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

import rlframe
from rlframe.errors import ConfigError, ModelError
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_algorithms.grpo import GRPO
from tests.e2e.small import make_model, make_questions, options

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{% endfor %}{{ 'z' }}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def reward_model(folder, template=None):
    """A classifier that scores a conversation by its last letters."""
    config = LlamaConfig(
        vocab_size=37,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=1,
        pad_token_id=0,
        initializer_range=0.5,
    )
    torch.manual_seed(5)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    char_tokenizer(folder)
    if template is not None:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
    return folder


def run(tmp_path, model, algo, scorer, **more):
    questions = make_questions(tmp_path / "questions.jsonl")
    given = options(tmp_path, model, questions)
    del given["reward"]
    given |= more
    given["algo"] = {"name": algo, "samples_per_prompt": 4}
    given["roles"] = {"reward": {"model": {"path": str(scorer)}}}
    return given


def figures(done):
    lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["same-tokens", "own-template"])
@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_scores_become_the_rewards(tmp_path, model, algo, template):
    scorer = reward_model(tmp_path / "rm", template)
    more = {"data.validate": f"jsonl:{tmp_path / 'questions.jsonl'}", "optim.lr": 1e-2}
    steps = figures(rlframe.fit(**run(tmp_path, model, algo, scorer, **more, steps=12)))
    rewards = [one["critic/rewards/mean"] for one in steps if "critic/rewards/mean" in one]
    assert len(rewards) == 12
    assert all(one["timing_s/reward"] > 0 for one in steps if "timing_s/reward" in one)
    held_out = [one["val/reward/mean"] for one in steps if "val/reward/mean" in one]
    assert held_out[-1] > held_out[0]


def test_the_scores_are_those_of_the_rendered_conversation(tmp_path, model):
    """Rewards of dumped rollouts against transformers, with the score model's own template."""
    scorer = reward_model(tmp_path / "rm", TEMPLATE)
    seen = []

    class Watch(GRPO):
        def scored(self, batch):
            texts = zip(batch["prompt_text"], batch["response_ids"].tolist(), strict=True)
            seen.extend(zip(texts, batch["rewards"].tolist(), strict=True))

    given = run(tmp_path, model, "grpo", scorer)
    del given["algo"]
    rlframe.fit(Watch(samples_per_prompt=4, kl_coef=0.0), **given)
    own = LlamaForSequenceClassification.from_pretrained(scorer)
    tokenizer, theirs = (AutoTokenizer.from_pretrained(path) for path in (scorer, model))
    assert len(seen) == 32
    for (prompt, response), reward in seen:
        text = theirs.decode(response, skip_special_tokens=True)
        ids = tokenizer(f"u{prompt}a{text}z", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            assert float(own(torch.tensor([ids])).logits) == pytest.approx(reward, abs=1e-4)


def test_two_sources_of_rewards_are_refused(tmp_path, model):
    given = run(tmp_path, model, "grpo", reward_model(tmp_path / "rm"), reward="exact")
    with pytest.raises(ConfigError, match=r"roles.reward writes the rewards, and so does .*exact"):
        rlframe.fit(**given)


def test_a_method_that_chooses_groups_by_reward_is_told_what_to_take(tmp_path, model):
    class Choosy(rlframe.Algorithm):
        def accept(self, group):
            return len(set(group.rewards)) > 1

    given = run(tmp_path, model, "dapo", reward_model(tmp_path / "rm"))
    with pytest.raises(ConfigError, match=r"only later: take the reward 'model' instead"):
        rlframe.fit(**given)
    del given["algo"]
    with pytest.raises(ConfigError, match=r"only later: take the reward 'model' instead"):
        rlframe.fit(Choosy(), **given)


def test_a_language_model_is_no_reward_model(tmp_path, model):
    with pytest.raises(ModelError, match="has no score head"):
        rlframe.fit(**run(tmp_path, model, "grpo", model))


def test_no_reward_at_all_is_said(tmp_path, model):
    given = run(tmp_path, model, "grpo", model, reward=[])
    del given["roles"]
    with pytest.raises(rlframe.BatchError, match="reads column 'rewards', which no role, reward"):
        rlframe.fit(**given)
