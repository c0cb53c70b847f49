"""Model descriptions from a Hugging Face ``config.json`` alone: no weights, no transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from rlframe.errors import ModelError, unknown_name
from rlframe.models.paths import resolve_model

__all__ = ["Head", "ModelShape", "known_models", "load_model", "model_from_config"]

Head = Literal["lm", "scalar"]

_DENSE = ("llama", "mistral", "qwen2", "qwen3")
_SPARSE = ("mixtral", "qwen2_moe", "qwen3_moe")


@dataclass(frozen=True)
class ModelShape:
    """The sizes that parameters, FLOPs and memory follow from.

    ``vocab`` is in tokens; all widths are in elements. ``head`` "scalar" has one output a token (a
    critic or reward model) in place of the vocabulary. ``sparse_layers`` of ``layers`` have
    ``experts`` experts, ``active_experts`` of them used a token.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sparse_layers: int = 0
    experts: int = 0
    active_experts: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    head: Head = "lm"
    family: str = ""
    """``model_type``; empty where nothing depends on it."""

    def with_head(self, head: Head) -> ModelShape:
        """The same body under another head."""
        return replace(self, head=head)

    @cached_property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention, biases and query-key norms included."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        weights = self.hidden * (2 * wide + 2 * narrow)
        biases = self.qkv_bias * (wide + 2 * narrow) + self.out_bias * self.hidden
        return weights + biases + self.qk_norm * 2 * self.head_dim

    def _mlp(self, experts: int) -> int:
        """Parameters of one sparse layer's MLP with ``experts`` experts counted."""
        shared = self.shared_intermediate * self.hidden * 3
        gate = self.hidden if self.shared_intermediate else 0
        router = self.hidden * self.experts
        return experts * 3 * self.hidden * self.expert_intermediate + shared + gate + router

    @cached_property
    def dense_mlp_parameters(self) -> int:
        """Parameters of one dense layer's gated MLP."""
        bias = self.mlp_bias * (2 * self.intermediate + self.hidden)
        return 3 * self.hidden * self.intermediate + bias

    def _layers(self, experts: int) -> int:
        dense = self.layers - self.sparse_layers
        mlps = dense * self.dense_mlp_parameters + self.sparse_layers * self._mlp(experts)
        return self.layers * (self.attention_parameters + 2 * self.hidden) + mlps

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of all layers."""
        return self._layers(self.experts)

    @cached_property
    def active_layer_parameters(self) -> int:
        """Parameters of all layers that one token uses."""
        return self._layers(self.active_experts)

    @cached_property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding."""
        return self.vocab * self.hidden

    @cached_property
    def head_parameters(self) -> int:
        """Parameters of the output head that are its own (none when tied)."""
        if self.head == "scalar":
            return self.hidden
        return 0 if self.tied else self.vocab * self.hidden

    @cached_property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        outer = self.embedding_parameters + self.head_parameters + self.hidden
        return self.layer_parameters + outer

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token uses."""
        return self.parameters - self.layer_parameters + self.active_layer_parameters

    @property
    def outputs(self) -> int:
        """Outputs of the head a token."""
        return self.vocab if self.head == "lm" else 1

    @property
    def kv_width(self) -> int:
        """Keys and values kept a token, elements, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def mlp_width(self) -> int:
        """Intermediate elements that one token computes in a layer (of sparse ones if any)."""
        if not self.sparse_layers:
            return self.intermediate
        return self.active_experts * self.expert_intermediate + self.shared_intermediate


def model_from_config(config: Mapping[str, Any], name: str = "config.json") -> ModelShape:
    """Describe a model by the values of its ``config.json``.

    Raises ``ModelError`` for a family that is not known or a value that is missing.
    """
    kind = config.get("model_type")
    if kind not in _DENSE + _SPARSE:
        raise ModelError(f"{name}: {unknown_name('model_type', str(kind), _DENSE + _SPARSE)}")
    try:
        return _shape(config, str(kind), name)
    except KeyError as error:
        raise ModelError(f"{name}: {error.args[0]} is missing in the config") from None


def _shape(config: Mapping[str, Any], kind: str, name: str) -> ModelShape:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    bias = kind in ("qwen2", "qwen2_moe") or bool(config.get("attention_bias"))
    dense = ModelShape(
        name=name,
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings")),
        qkv_bias=bias,
        out_bias=kind in ("llama", "qwen3", "qwen3_moe") and bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        family=kind,
    )
    return _with_experts(dense, config, kind) if kind in _SPARSE else dense


def _with_experts(dense: ModelShape, config: Mapping[str, Any], kind: str) -> ModelShape:
    if kind == "mixtral":
        return replace(
            dense,
            sparse_layers=dense.layers,
            experts=config["num_local_experts"],
            active_experts=config["num_experts_per_tok"],
            expert_intermediate=dense.intermediate,
        )
    step = config.get("decoder_sparse_step") or 1
    plain = set(config.get("mlp_only_layers") or ())
    sparse = sum(i not in plain and (i + 1) % step == 0 for i in range(dense.layers))
    return replace(
        dense,
        sparse_layers=sparse,
        experts=config["num_experts"],
        active_experts=config["num_experts_per_tok"],
        expert_intermediate=config["moe_intermediate_size"],
        shared_intermediate=config["shared_expert_intermediate_size"] if kind == "qwen2_moe" else 0,
    )


@lru_cache(maxsize=1)
def _known() -> dict[str, dict[str, Any]]:
    import yaml

    text = (files(__package__) / "models.yaml").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return table


def known_models() -> tuple[str, ...]:
    """Names that :func:`load_model` takes without a file."""
    return tuple(_known())


def load_model(name: str) -> ModelShape:
    """A known name, a ``config.json``, a folder that holds one, or ``pkg:PACKAGE/FOLDER``.

    Raises ``ModelError`` when there is no such thing.
    """
    table = _known()
    if name.lower() in table:
        return model_from_config(table[name.lower()], name.lower())
    path = Path(resolve_model(name))
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        known = unknown_name("model", name, table)
        raise ModelError(f"{known} A model may also be a config.json or a folder with one.")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file}: not JSON: {error}") from None
    return model_from_config(config, name)
