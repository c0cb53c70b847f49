"""Operations of a model against those that torch counts in it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from rlframe.recording.mfu import Shape, device_peak
from rlframe.testing.models import tiny_model


def test_a_forward_pass_is_what_torch_counts(tmp_path):
    """But for attention, which torch counts over the whole square, and the head at every token."""
    folder = tiny_model(tmp_path)
    shape = Shape.of(folder)
    assert shape is not None
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    tokens = 48
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.ones(1, tokens, dtype=torch.int64))
    square = 2.0 * shape.layers * shape.attention * tokens**2
    mine = shape.forward(np.array([tokens]), tokens) + square
    assert counted.get_total_flops() == pytest.approx(mine, rel=0.01)


def test_sequences_add_up_and_attention_does_not_cross_them():
    shape = Shape(layers=2, layer_weights=10, attention=4, head=100)
    both = shape.forward(np.array([3, 5]), 4)
    assert both == shape.forward(np.array([3]), 4) + shape.forward(np.array([5]), 0)
    assert shape.forward(np.array([8]), 4) > both


def test_experts_count_where_a_token_passes(tmp_path):
    dense = {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "vocab_size": 11,
        "intermediate_size": 32,
    }
    experts = {**dense, "num_experts_per_tok": 2, "moe_intermediate_size": 4}
    weights = []
    for name, config in (("dense", dense), ("experts", experts)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        shape = Shape.of(folder)
        assert shape is not None
        weights.append(shape.layer_weights)
    attention = 4 * 8 * 8
    assert weights == [attention + 3 * 8 * 32, attention + 3 * 8 * 2 * 4]


def test_a_model_of_another_kind_has_none(tmp_path):
    assert Shape.of(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"d_model": 8}))
    assert Shape.of(tmp_path) is None


def test_a_cpu_is_measured_and_another_device_is_not_known():
    assert device_peak("cpu") > 1e8
    assert device_peak("tpu") == 0.0
