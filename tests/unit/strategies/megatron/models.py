"""Tiny random models of the three families, with sizes that two tensor-parallel ranks divide."""

from __future__ import annotations

from typing import Any

import torch
import transformers

KINDS = ("llama", "qwen2", "qwen3")
TIED = {"llama": False, "qwen2": True, "qwen3": False}


def write_model(folder, kind: str, **options: Any):
    """Write a model of about 10,000 parameters; 37 tokens, so that two ranks need padding."""
    settings: dict[str, Any] = {
        "vocab_size": 37,
        "hidden_size": 24,
        "intermediate_size": 34,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 10 if kind == "qwen3" else 6,
        "max_position_embeddings": 64,
        "initializer_range": 0.25,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": TIED[kind],
        **options,
    }
    family = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    if kind == "qwen2":
        del settings["head_dim"]
    config = getattr(transformers, f"{family}Config")(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
        # Norms and biases start at one and zero, where a mixed-up pair would not be noticed.
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder
