"""Small models whose heads and vocabulary can be cut, and ones that cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlframe.testing.models import tiny_model

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 34,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""Four heads of width 6 on two key-value heads; 34 neurons and 37 tokens divide by nothing."""


def cut_model(folder: Path, kind: str = "qwen2", **options: Any) -> Path:
    """A Qwen2 (biases, tied), Llama (neither; bias after the sum) or Qwen3 (norms of heads)."""
    if kind == "llama":
        options = {"attention_bias": True, "mlp_bias": True, **options}
    if kind != "qwen3":
        return tiny_model(folder, kind, **{**SIZES, **options})
    return _qwen3(folder, **options)


def _qwen3(folder: Path, **options: Any) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = {
        "vocab_size": 37,
        "num_hidden_layers": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.25,
        "head_dim": 6,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **SIZES,
        **options,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**settings))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder
