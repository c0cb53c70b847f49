"""The hand-written decoder against transformers, over every shape that it claims."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from rlframe.errors import ModelError
from rlframe_plugins.rollouts.torch.arch import Arch
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS, blocks_for
from rlframe_plugins.rollouts.torch.cache import KVCache
from rlframe_plugins.rollouts.torch.decoder import Decoder
from rlframe_plugins.rollouts.torch.weights import Weights

SMALL = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHAPES = {
    "llama": LlamaConfig(**SMALL),
    "llama-bias-tied": LlamaConfig(
        **SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "llama-mha": LlamaConfig(**{**SMALL, "num_key_value_heads": 4}),
    "llama-mqa": LlamaConfig(**{**SMALL, "num_key_value_heads": 1}),
    "llama-head-dim": LlamaConfig(**SMALL, head_dim=12),
    "llama-llama3": LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "llama-linear": LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
    ),
    "llama-yarn": LlamaConfig(**SMALL, rope_parameters=YARN),
    "llama-eps": LlamaConfig(**SMALL, rms_norm_eps=0.1),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=16),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
}


def build(config, dtype=torch.float32):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return model.to(dtype)


def decoder_of(model):
    arch = Arch.read(model.config)
    decoder = Decoder(model.config, arch)
    decoder.use(Weights.view(arch, dict(model.named_parameters())))
    return decoder, KVCache(arch.layers, arch.kv_heads, arch.head_dim)


@torch.inference_mode()
def logits_of(decoder, cache, sequences, start, exact=False):
    """Logits of each token from ``start[i] - 1`` on: one prefill, then decode, ragged rows.

    Row i has every ``count``-th block from the i-th on.
    """
    count, vocab = len(sequences), decoder.weights.head.shape[0]
    most = blocks_for(max(map(len, sequences)))
    cache.reserve(count * most, count * most, decoder.weights.embed)
    tables = np.arange(count * most).reshape(most, count).T.copy()
    prompts = [s[:n] for s, n in zip(sequences, start, strict=True)]
    hidden = decoder.prefill(prompts, [0] * count, tables.tolist(), cache)
    out = [decoder.logits(hidden)[:vocab].clone()]
    positions = np.array(start)
    for _ in range(min(len(s) - n for s, n in zip(sequences, start, strict=True))):
        tokens = np.array([s[p] for s, p in zip(sequences, positions, strict=True)])
        hidden = decoder.decode(tokens, positions, tables, cache, exact)
        out.append(decoder.logits(hidden)[:vocab].clone())
        positions = positions + 1
    return torch.stack(out).permute(2, 0, 1)


def expected(model, sequence, start, count):
    with torch.no_grad():
        return model(input_ids=torch.tensor([sequence])).logits[0, start - 1 : start - 1 + count]


def sequences_of(lengths, extra=5):
    g = torch.Generator().manual_seed(3)
    return [torch.randint(0, 90, (n + extra,), generator=g).tolist() for n in lengths]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rows", [1, 3, 14])
def test_equals_transformers(name, rows):
    model = build(SHAPES[name])
    lengths = [(7 * i) % 40 + 1 for i in range(rows)]
    sequences = sequences_of(lengths)
    got = logits_of(*decoder_of(model), sequences, lengths)
    for row, sequence, start in zip(got, sequences, lengths, strict=True):
        torch.testing.assert_close(row, expected(model, sequence, start, 6), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama-mqa", "qwen2"])
@pytest.mark.parametrize("exact", [False, True])
@torch.inference_mode()
def test_rows_that_share_blocks_equal_transformers(name, exact):
    """Three prompts begin alike, two of them for longer; the beginnings are prefilled once.

    In company of a row that shares nothing, in blocks that lie anywhere.
    """
    model, extra = build(SHAPES[name]), 4
    decoder, cache = decoder_of(model)
    cache.reserve(40, 40, decoder.weights.embed)
    one, two, three = BLOCK_TOKENS, 2 * BLOCK_TOKENS, 3 * BLOCK_TOKENS
    base, other, tail, last = sequences_of([three, three, three, 7], extra)
    texts = [base[: two + 5], base[:two] + other[:40], base[:one] + tail[:20], last]
    starts, tables = [0, two, one, 0], [[9, 30, 2], [9, 30, 7, 8], [9, 11, 0, 0], [21]]
    hidden = [
        decoder.prefill([t[s:] for t, s in zip(part, begin, strict=True)], begin, table, cache)
        for part, begin, table in (
            (texts[:1], starts[:1], tables[:1]),
            (texts[1:], starts[1:], tables[1:]),
        )
    ]
    got = [decoder.logits(torch.cat(hidden, 1))[:90].clone()]
    padded = np.array([(t * 4)[:4] for t in tables])
    positions, more = np.array([len(t) for t in texts]), (other, base, last, tail)
    for step in range(extra):
        tokens = np.array([text[step] for text in more])
        hidden = decoder.decode(tokens, positions, padded, cache, exact)
        got.append(decoder.logits(hidden)[:90].clone())
        positions = positions + 1
    for row, text in enumerate(texts):
        whole = text + more[row][:extra]
        wanted = expected(model, whole, len(text), extra + 1)
        torch.testing.assert_close(torch.stack(got)[:, :, row], wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_bfloat16_is_as_close_as_transformers_is(name):
    exact, model = build(SHAPES[name]), build(SHAPES[name], torch.bfloat16)
    sequences, lengths = sequences_of([9, 30]), [9, 30]
    got = logits_of(*decoder_of(model), sequences, lengths)
    for row, sequence, start in zip(got, sequences, lengths, strict=True):
        truth = expected(exact, sequence, start, 6)
        theirs = (expected(model, sequence, start, 6).float() - truth).abs().mean()
        assert (row - truth).abs().mean() < 1.5 * theirs


def test_rope_table_grows_and_the_cache_keeps_its_rows():
    model = build(SHAPES["llama"])
    sequences, lengths = sequences_of([200], 40), [200]
    decoder, cache = decoder_of(model)
    logits_of(decoder, cache, sequences_of([4]), [4])
    got = logits_of(decoder, cache, sequences, lengths)
    torch.testing.assert_close(got[0], expected(model, sequences[0], 200, 41), atol=2e-5, rtol=1e-4)


def test_shares_every_tensor_and_sees_changes_in_place():
    model = build(SHAPES["llama-bias-tied"])
    decoder, cache = decoder_of(model)
    weights, layer = decoder.weights, model.model.layers[1]
    assert weights.head.data_ptr() == weights.embed.data_ptr() == model.lm_head.weight.data_ptr()
    mine = weights.layers[1]
    theirs = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
    assert [p.weight.data_ptr() for p in mine.qkv] == [p.weight.data_ptr() for p in theirs]
    assert mine.down.bias.data_ptr() == layer.mlp.down_proj.bias.data_ptr()
    assert mine.norm_in.data_ptr() == layer.input_layernorm.weight.data_ptr()
    sequences = sequences_of([6])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9).add_(0.01)
    got = logits_of(decoder, cache, sequences, [6])
    torch.testing.assert_close(got[0], expected(model, sequences[0], 6, 6), atol=2e-5, rtol=1e-4)


def test_adjacent_projections_are_one_view():
    model = build(SHAPES["qwen2"])
    tensors = dict(model.named_parameters())
    names = ["model.layers.0.self_attn.%s_proj." % one for one in "qkv"]  # noqa: UP031
    for kind in ("weight", "bias"):
        parts = [tensors[name + kind].detach() for name in names]
        flat = torch.cat([p.reshape(-1) for p in parts])
        start = 0
        for name, part in zip(names, parts, strict=True):
            tensors[name + kind] = flat[start : start + part.numel()].view(part.shape)
            start += part.numel()
    arch = Arch.read(model.config)
    weights = Weights.view(arch, tensors)
    assert [len(layer.qkv) for layer in weights.layers] == [1, 3]
    fused = weights.layers[0].qkv[0]
    assert fused.weight.data_ptr() == tensors[names[0] + "weight"].data_ptr()
    decoder = Decoder(model.config, arch)
    decoder.use(weights)
    sequences = sequences_of([6])
    got = logits_of(decoder, KVCache(2, 2, 8), sequences, [6])
    torch.testing.assert_close(got[0], expected(model, sequences[0], 6, 6), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPT2Config(), "model_type 'gpt2'.*--rollout hf"),
        (LlamaConfig(**SMALL, hidden_act="gelu"), "gelu"),
        (
            LlamaConfig(
                **SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 9.0, "factor": 2.0}
            ),
            "dynamic",
        ),
    ],
)
def test_refuses_what_it_would_compute_wrongly(config, message):
    with pytest.raises(ModelError, match=message):
        Arch.read(config)


def test_sliding_window_is_refused_only_where_it_matters():
    arch = Arch.read(MistralConfig(**SMALL, sliding_window=16))
    arch.check_length(16)
    with pytest.raises(ModelError, match="sliding window of 16"):
        arch.check_length(17)
    off = Qwen2Config(**SMALL, sliding_window=16, use_sliding_window=False)
    Arch.read(off).check_length(200)
    on = Qwen2Config(**SMALL, sliding_window=16, use_sliding_window=True, max_window_layers=1)
    with pytest.raises(ModelError, match="sliding window"):
        Arch.read(on).check_length(17)


def test_missing_unknown_and_mixed_tensors_are_errors():
    model = build(SHAPES["llama"])
    arch, tensors = Arch.read(model.config), dict(model.named_parameters())
    name = "model.layers.1.mlp.up_proj.weight"
    without = {n: t for n, t in tensors.items() if n != name}
    with pytest.raises(ModelError, match=name):
        Weights.view(arch, without)
    with pytest.raises(ModelError, match="lora"):
        Weights.view(arch, {**tensors, "model.lora_A": torch.zeros(1)})
    with pytest.raises(ModelError, match="bfloat16"):
        Weights.view(arch, {**tensors, name: tensors[name].bfloat16()})
