"""What Megatron's GPT model must know of a Hugging Face config, checked before it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlframe.errors import ConfigError, ModelError
from rlframe.models.rope import rope_options

__all__ = ["SUPPORTED", "Arch"]

SUPPORTED = ("llama", "qwen2", "qwen3")
"""Values of ``model_type`` whose block is norm, GQA attention with RoPE, norm, gated MLP."""

_ROPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class Arch:
    """Shapes and constants of a model."""

    model_type: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    rope_theta: float
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    max_positions: int

    @classmethod
    def read(cls, config: Any) -> Arch:
        """From a transformers config. Raises ModelError where Megatron would compute otherwise."""
        kind = config.model_type
        if kind not in SUPPORTED:
            raise _refuse(kind, f"it knows {', '.join(SUPPORTED)}")
        if config.hidden_act not in ("silu", "swish"):
            raise _refuse(kind, f"hidden_act '{config.hidden_act}' is not silu")
        rope = rope_options(config)
        if rope["rope_type"] not in _ROPES or rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise _refuse(kind, f"its rotary embedding '{rope['rope_type']}' is not a plain one")
        if getattr(config, "mlp_bias", False):
            raise _refuse(kind, "its feed-forward layers have biases")
        if kind != "qwen2" and getattr(config, "attention_bias", False):
            raise _refuse(kind, "its attention has an output bias")
        if _slides(config):
            raise _refuse(kind, "some of its layers have sliding-window attention")
        heads = int(config.num_attention_heads)
        return cls(
            model_type=kind,
            layers=int(config.num_hidden_layers),
            hidden=int(config.hidden_size),
            ffn=int(config.intermediate_size),
            heads=heads,
            kv_heads=int(config.num_key_value_heads or heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
            vocabulary=int(config.vocab_size),
            eps=float(config.rms_norm_eps),
            rope_theta=float(rope["rope_theta"]),
            tied=bool(config.tie_word_embeddings),
            qkv_bias=kind == "qwen2",
            qk_norm=kind == "qwen3",
            max_positions=int(config.max_position_embeddings),
        )

    def check_sizes(self, tp: int, stages: int) -> None:
        """Raise ConfigError where heads, widths or layers do not divide."""
        for name, size in (
            ("num_key_value_heads", self.kv_heads),
            ("num_attention_heads", self.heads),
            ("intermediate_size", self.ffn),
        ):
            if size % tp:
                raise ConfigError(f"strategy.tp={tp} does not divide the model's {name}={size}")
        if -(-self.vocabulary // tp) * (tp - 1) >= self.vocabulary:
            raise ConfigError(
                f"strategy.tp={tp}: {self.vocabulary} tokens leave a rank without any"
            )
        if stages > self.layers:
            raise ConfigError(
                f"the model's {self.layers} layers do not fill {stages} pipeline stages: lower "
                "strategy.pp or strategy.vpp"
            )


def _slides(config: Any) -> bool:
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        return any(kind != "full_attention" for kind in layer_types)
    if not getattr(config, "use_sliding_window", False):
        return False
    return bool(getattr(config, "sliding_window", None))


def _refuse(kind: str, why: str) -> ModelError:
    return ModelError(
        f"strategy 'megatron' cannot build model_type '{kind}': {why}. Use --strategy fsdp"
    )
