"""What the decoder must know of a Hugging Face config, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlframe.errors import ModelError
from rlframe.models.rope import inverse_frequencies, rope_options

__all__ = ["SUPPORTED", "Arch", "rope_tables"]

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")
"""Values of ``model_type`` whose block is norm, GQA attention with RoPE, norm, gated MLP."""

_STATIC_ROPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Arch:
    """Shapes and constants of a model; ``window`` is 0 without sliding attention."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    tied: bool
    max_positions: int
    window: int

    @classmethod
    def read(cls, config: Any) -> Arch:
        """From a transformers config. Raises ModelError where the decoder would compute wrongly."""
        kind = config.model_type
        if kind not in SUPPORTED:
            raise _refuse(kind, f"it knows {', '.join(SUPPORTED)}")
        if config.hidden_act not in ("silu", "swish"):
            raise _refuse(kind, f"hidden_act '{config.hidden_act}' is not silu")
        rope = rope_options(config)
        if rope["rope_type"] not in _STATIC_ROPES:
            raise _refuse(kind, f"rope_type '{rope['rope_type']}' is not static")
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise _refuse(kind, "partial_rotary_factor is not 1")
        heads = int(config.num_attention_heads)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            model_type=kind,
            layers=int(config.num_hidden_layers),
            hidden=int(config.hidden_size),
            heads=heads,
            kv_heads=int(config.num_key_value_heads or heads),
            head_dim=int(head_dim),
            eps=float(config.rms_norm_eps),
            tied=bool(config.tie_word_embeddings),
            max_positions=int(config.max_position_embeddings),
            window=_window(config),
        )

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Layers, key-value heads, size of a head."""
        return self.layers, self.kv_heads, self.head_dim

    def shard(self, ranks: int) -> Arch:
        """What one of ``ranks`` has: its heads, key-value heads repeated where there are fewer.

        Raises ModelError for heads that do not divide.
        """
        whole, few = self.kv_heads % ranks == 0, ranks % self.kv_heads == 0
        if self.heads % ranks or not (whole or few):
            raise ModelError(
                f"rollout.tensor_parallel={ranks} does not divide {self.heads} heads and "
                f"{self.kv_heads} key-value heads"
            )
        return replace(
            self, heads=self.heads // ranks, kv_heads=self.kv_heads // ranks if whole else 1
        )

    def check_length(self, tokens: int) -> None:
        """Raise ModelError when a sequence of that many tokens would meet the sliding window."""
        if self.window and tokens > self.window:
            raise _refuse(
                self.model_type,
                f"prompt and response may reach {tokens} tokens, beyond its sliding window of "
                f"{self.window}",
            )


def rope_tables(config: Any, arch: Arch, positions: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Cosine and sine, each (positions, head_dim / 2), computed in float32 as transformers does."""
    inverse, scale = inverse_frequencies(config, arch.head_dim)
    angles = torch.arange(positions).float()[:, None] * inverse[None, :]
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def _window(config: Any) -> int:
    """Tokens of the sliding window; 0 where no layer uses one."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and "sliding_attention" not in layer_types:
        return 0
    if not getattr(config, "use_sliding_window", True):
        return 0
    return int(getattr(config, "sliding_window", None) or 0)


def _refuse(kind: str, why: str) -> ModelError:
    return ModelError(f"rollout 'torch' cannot run model_type '{kind}': {why}. Use --rollout hf")
