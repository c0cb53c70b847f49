"""A model small enough to allocate, large enough that its tensors outweigh everything else."""

from __future__ import annotations

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "num_hidden_layers": 4,
}
