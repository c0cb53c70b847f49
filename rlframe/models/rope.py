"""What a Hugging Face config says of rotary embeddings, for engines with attention of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["inverse_frequencies", "rope_options"]


def rope_options(config: Any) -> dict[str, Any]:
    """``rope_parameters`` of transformers 5, or ``rope_scaling`` and ``rope_theta`` of 4.

    ``rope_type`` and ``rope_theta`` are always there.
    """
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    rope = dict(found)
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    if "rope_theta" not in rope:
        rope["rope_theta"] = config.rope_theta
    return rope


def inverse_frequencies(config: Any, head_dim: int) -> tuple[Tensor, float]:
    """Frequencies (head_dim / 2,), float32, as transformers computes them.

    The second is what multiplies cosine and sine.
    """
    import torch

    rope = rope_options(config)
    if rope["rope_type"] == "default":
        powers = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        return 1.0 / (rope["rope_theta"] ** powers), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    inverse, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    return torch.as_tensor(inverse, dtype=torch.float32), float(scale)
