"""Score models: any sequence classifier with one label, scored as transformers scores it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    GPT2Config,
    LlamaConfig,
    Qwen2Config,
)

from rlframe.batching.batch import Batch
from rlframe.config import ModelConfig, OptimConfig
from rlframe.errors import ModelError
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.models import random_micro, tiny_model
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_strategies.retokenise import Retokeniser
from rlframe_strategies.single import SingleStrategy

SMALL = {"vocab_size": 37, "num_labels": 1, "pad_token_id": 0}
ROPE = {
    "hidden_size": 20,
    "intermediate_size": 34,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
BERT = {
    "hidden_size": 20,
    "intermediate_size": 34,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
CONFIGS = {
    "llama": LlamaConfig(**SMALL, **ROPE),
    "qwen2": Qwen2Config(**SMALL, **ROPE),
    "gpt2": GPT2Config(**SMALL, n_embd=20, n_layer=2, n_head=2),
    "bert": BertConfig(**SMALL, **BERT),
    "deberta": DebertaV2Config(**SMALL, **BERT),
}


def classifier(folder, name, **changes):
    config = CONFIGS[name]
    torch.manual_seed(3)
    config = type(config)(**{**config.to_dict(), **changes})
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


def build(folder, packing="auto", optim=None):
    strategy = SingleStrategy(SingleStrategy.Config(packing=packing), RankInfo())
    strategy.build(ModelSpec(str(folder), ModelConfig(path=str(folder)), "score", optim, 5))
    return strategy


@pytest.mark.parametrize("packing", ["auto", "off"])
@pytest.mark.parametrize("name", CONFIGS)
def test_scores_are_those_of_transformers(tmp_path, name, packing):
    model, micro = classifier(tmp_path, name), random_micro()
    got = build(tmp_path, packing).forward(micro, ("scores",)).scores
    for row in range(len(micro)):
        prompt, n = micro["prompt_ids"][row], int(micro["prompt_lengths"][row])
        response = micro["response_ids"][row, : int(micro["response_lengths"][row])]
        ids = torch.cat([prompt[len(prompt) - n :], response])[None]
        with torch.no_grad():
            wanted = model(ids, attention_mask=torch.ones_like(ids)).logits[0, 0]
        torch.testing.assert_close(got[row], wanted, rtol=1e-4, atol=1e-5)


def test_the_end_token_may_be_the_padding(tmp_path):
    """As in transformers, a score is then read before it."""
    model = classifier(tmp_path, "llama", pad_token_id=2, eos_token_id=2)
    micro = random_micro()
    micro["response_ids"][0, -2:] = 2
    got = build(tmp_path).forward(micro, ("scores",)).scores[0]
    ids = torch.cat([micro["prompt_ids"][0], micro["response_ids"][0]])[None]
    with torch.no_grad():
        torch.testing.assert_close(got, model(ids).logits[0, 0], rtol=1e-4, atol=1e-5)
        short = model(ids[:, :-2]).logits[0, 0]
    torch.testing.assert_close(got, short, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_classifiers_are_trained_and_exported(tmp_path, name):
    classifier(tmp_path / "base", name)
    strategy = build(tmp_path / "base", optim=OptimConfig(name="sgd", lr=0.1))
    micro = random_micro()
    before = strategy.forward(micro, ("scores",)).scores
    strategy.forward_backward([micro], ("scores",), lambda out, _: -out.scores.sum())
    assert strategy.step(0) > 0
    after = strategy.forward(micro, ("scores",)).scores
    assert after.sum() > before.sum()
    strategy.export(tmp_path / "out")
    again = build(tmp_path / "out").forward(micro, ("scores",)).scores
    torch.testing.assert_close(again, after, rtol=1e-4, atol=1e-5)


def test_a_model_without_a_score_head_is_refused_unless_it_is_trained(tmp_path):
    tiny_model(tmp_path)
    with pytest.raises(ModelError, match="has no score head.*--algo rm and rlframe export"):
        build(tmp_path)
    trained = build(tmp_path, optim=OptimConfig())
    assert (trained.forward(random_micro(), ("scores",)).scores == 0).all()


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_more_than_one_label_is_refused(tmp_path, name):
    classifier(tmp_path, name, num_labels=3)
    with pytest.raises(ModelError, match="3 labels|shape"):
        build(tmp_path)


def conversation(folder, template=None):
    from transformers import AutoTokenizer

    char_tokenizer(folder)
    if template is not None:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
    return str(folder)


TEMPLATE = (
    "{% for m in messages %}{{ 'u' if m['role'] == 'user' else 'r' }}{{ m['content'] }}"
    "{% endfor %}{{ 'z' }}"
)


def test_equal_tokenizers_pass_tokens_on(tmp_path):
    one, other = conversation(tmp_path / "a"), conversation(tmp_path / "b")
    assert Retokeniser.between(one, one) is None
    assert Retokeniser.between(one, other) is None


@pytest.mark.parametrize("prompt", ["2a", [{"role": "user", "content": "2a"}]])
def test_another_template_is_rendered_and_tokenised_anew(tmp_path, prompt):
    from transformers import AutoTokenizer

    policy, scorer = conversation(tmp_path / "a"), conversation(tmp_path / "b", TEMPLATE)
    again = Retokeniser.between(policy, scorer)
    tokenizer = AutoTokenizer.from_pretrained(policy)

    def ids(text):
        return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)

    batch = Batch.from_columns(
        {
            "prompt_ids": [ids("2a"), ids("2a")],
            "response_ids": [np.append(ids("bc"), tokenizer.eos_token_id), ids("")],
            "prompt_text": [prompt, prompt],
        }
    )
    made = again(batch)
    texts = [tokenizer.decode(row.tolist()) for row in made.packed("prompt_ids").rows()]
    assert texts == ["u2arbcz", "u2arz"]
    assert made.lengths("response_ids").tolist() == [0, 0]
