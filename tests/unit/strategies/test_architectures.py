from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlframe.config import ModelConfig
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.models import random_micro
from rlframe_strategies.single import SingleStrategy

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 6},
    "gemma2": {"head_dim": 16, "sliding_window": 6},
    "gemma3_text": {"head_dim": 16, "sliding_window": 6},
    "granite": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.3},
    "mixtral": {"num_local_experts": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "bloom": {},
    "mamba": {"state_size": 4},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_causal_model_gives_the_log_probabilities_of_its_own_logits(
    name: str, tmp_path: Path
) -> None:
    """Rows of unequal length, some beyond the sliding window, against rows run alone."""
    settings = {
        "vocab_size": 37,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "initializer_range": 0.25,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = AutoConfig.for_model(name, **{**settings, **ARCHITECTURES[name]})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    micro = random_micro(seed=3)
    strategy = SingleStrategy(SingleStrategy.Config(), RankInfo())
    strategy.build(ModelSpec(str(tmp_path), ModelConfig(path=str(tmp_path)), temperature=0.7))
    out = strategy.forward(micro, ("logprobs",)).logprobs
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    for i in range(len(micro)):
        p, r = int(micro["prompt_lengths"][i]), int(micro["response_lengths"][i])
        ids = torch.cat([micro["prompt_ids"][i, 7 - p :], micro["response_ids"][i, :r]])
        with torch.no_grad():
            logits = reference(input_ids=ids[None], use_cache=False).logits[0, p - 1 :][:r]
        expected = (logits / 0.7).log_softmax(-1).gather(1, ids[p:, None])[:, 0]
        torch.testing.assert_close(out[i, :r], expected, rtol=1e-5, atol=1e-5)
        assert not out[i, r:].any()
