from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from rlframe.config import ModelConfig
from rlframe.errors import ModelError
from rlframe.testing.models import tiny_model
from rlframe_strategies.loading import dtype_of, load_model

CPU = torch.device("cpu")


def load(path: Path | str) -> None:
    load_model(str(path), ModelConfig(path=str(path)), CPU)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder; check --model"):
        load(tmp_path / "nothing")


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"without config\.json"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{", '{"model_type": "no-such-architecture"}', "{}"])
def test_a_config_that_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tiny_model(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(tmp_path)


def test_damaged_weights(tmp_path: Path) -> None:
    (tiny_model(tmp_path) / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(tmp_path)


def test_weights_of_fewer_layers_than_the_config_says(tmp_path: Path) -> None:
    file = tiny_model(tmp_path) / "config.json"
    config = json.loads(file.read_text())
    config["num_hidden_layers"] = 3
    config["layer_types"] = ["full_attention"] * 3
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"lacks weights: model\.layers\.2"):
        load(tmp_path)


def test_weights_of_another_shape(tmp_path: Path) -> None:
    file = tiny_model(tmp_path) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "intermediate_size": 36}))
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(tmp_path)


def test_a_hub_name_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="hub name that this machine can reach"):
        load("nobody/no-such-model")


def test_a_model_that_is_no_language_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "device", "dtype"),
    [
        ("auto", "cpu", torch.float32),
        ("auto", "cuda", torch.bfloat16),
        ("bfloat16", "cpu", torch.bfloat16),
    ],
)
def test_types(name: str, device: str, dtype: torch.dtype) -> None:
    assert dtype_of(name, torch.device(device)) == dtype
