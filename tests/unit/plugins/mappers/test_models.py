from __future__ import annotations

import json

import pytest

from rlframe.errors import ModelError
from rlframe_plugins.mappers.models import known_models, load_model, model_from_config

PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "codellama-34b": 33_743_970_304,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name):
    assert load_model(name).parameters == PUBLISHED[name]


def test_active_parameters_of_mixtures():
    assert load_model("mixtral-8x7b").active_parameters == 12_879_925_248
    assert round(load_model("qwen3-30b-a3b").active_parameters / 1e9, 1) == 3.4
    dense = load_model("llama-2-7b")
    assert dense.active_parameters == dense.parameters


CONFIGS = [
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    {"model_type": "llama", "num_key_value_heads": 2, "tie_word_embeddings": True},
    {"model_type": "mistral", "num_key_value_heads": 2, "head_dim": 24},
    {"model_type": "qwen2", "num_key_value_heads": 2},
    {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 24, "attention_bias": True},
    {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    {
        "model_type": "qwen3_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "decoder_sparse_step": 2,
    },
    {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56,
        "mlp_only_layers": [1],
    },
]
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 128,
}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: "-".join(map(str, c.values()))[:40])
def test_equal_to_transformers_without_weights(config):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {**SMALL, **config}
    kind = values.pop("model_type")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values))
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert model_from_config({**SMALL, **config}).parameters == counted


def test_a_scalar_head_replaces_the_vocabulary():
    body = load_model("llama-2-7b")
    critic = body.with_head("scalar")
    assert body.parameters - critic.parameters == 32000 * 4096 - 4096
    tied = load_model("qwen2.5-0.5b")
    assert tied.with_head("scalar").parameters == tied.parameters + 896


def test_from_a_folder_or_file(tmp_path):
    config = {"model_type": "llama", **SMALL}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert load_model(str(file)).parameters == load_model(str(tmp_path)).parameters
    assert load_model(str(tmp_path)).layers == 4


def test_errors_say_what_is_known(tmp_path):
    with pytest.raises(ModelError, match="Did you mean 'llama-2-7b'"):
        load_model("lama-2-7b")
    with pytest.raises(ModelError, match="model_type 'mamba'"):
        model_from_config({"model_type": "mamba"})
    with pytest.raises(ModelError, match="vocab_size"):
        model_from_config(
            {k: v for k, v in {"model_type": "llama", **SMALL}.items() if k != "vocab_size"}
        )
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        load_model(str(tmp_path))


def test_every_known_name_loads():
    assert all(load_model(name).parameters > 1e8 for name in known_models())
