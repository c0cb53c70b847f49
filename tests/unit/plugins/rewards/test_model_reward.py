"""The reward 'model' scores conversations as transformers does, whatever the batch."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from rlframe.errors import ModelError, RewardError
from rlframe.requests import Episode, Request, Row
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_plugins.rewards.model import ModelReward

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{% endfor %}{{ 'z' }}"


@pytest.fixture(scope="module", params=[0, None], ids=["padded", "no-pad"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("rm")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=37,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
        pad_token_id=request.param,
    )
    BertForSequenceClassification(config).save_pretrained(path)
    char_tokenizer(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


def score(reward, prompt, texts):
    episodes = [Episode(Request((1,)), [], "stop", text) for text in texts]
    return asyncio.run(reward.score(Row((1,), {"prompt": prompt}, source="q:1"), episodes))


@pytest.mark.parametrize("batch", [1, 2, 16])
@pytest.mark.parametrize("prompt", ["ab", [{"role": "user", "content": "ab"}]])
def test_scores_are_those_of_single_conversations(folder, prompt, batch):
    texts = ["c", "cdefg", "", "hij"]
    got = score(ModelReward(ModelReward.Config(str(folder), batch=batch)), prompt, texts)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, value in zip(texts, got, strict=True):
        ids = tokenizer(f"uaba{text}z", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            wanted = float(model(torch.tensor([ids])).logits)
        assert value == pytest.approx(wanted, abs=1e-5)


def test_what_is_no_classifier_is_refused(tmp_path):
    from rlframe.testing.models import tiny_model

    path = char_tokenizer(tiny_model(tmp_path))
    with pytest.raises(ModelError, match=r"no classifier with one label .*score"):
        score(ModelReward(ModelReward.Config(str(path))), "ab", ["c"])


def test_a_row_without_a_prompt_is_named(folder):
    with pytest.raises(RewardError, match="q:1: the reward 'model' needs the prompt's text"):
        score(ModelReward(ModelReward.Config(str(folder))), None, ["c"])
