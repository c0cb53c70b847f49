"""How much of a device's peak training uses: operations of the model, not of how it is run.

``perf/mfu`` is the floating-point operations that the policy's update needs (forward and backward,
three times a forward pass; what is computed again to spare memory is not counted), divided by its
time and by what its devices could do. A layer costs two operations a token and weight, and causal
attention over s tokens 2 s h; the head is counted at response tokens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rlframe.batching.batch import Batch

__all__ = ["Shape", "device_peak", "update_flops"]

Ints = NDArray[np.int64]

_PEAKS = {
    "B200": 2.25e15,
    "H200": 9.89e14,
    "H100": 9.89e14,
    "H800": 9.89e14,
    "H20": 1.48e14,
    "GH200": 9.89e14,
    "A100": 3.12e14,
    "A800": 3.12e14,
    "L40S": 3.62e14,
    "A10": 1.25e14,
    "V100": 1.25e14,
    "MI300X": 1.307e15,
}
"""Dense bf16 (V100: fp16) operations a second by a word of the device's name; data sheets."""
_SIZE, _TRIES = 768, 5
"""Side of the matrices whose product is timed on a CPU, and how often."""


@dataclass(frozen=True)
class Shape:
    """What a decoder's operations follow from. ``layer_weights`` are those that a token uses."""

    layers: int
    layer_weights: int
    attention: int
    """Heads times their size."""
    head: int
    """Weights of the output layer."""

    @classmethod
    def of(cls, folder: str | Path) -> Shape | None:
        """From ``config.json`` by its usual names; None where they are not there."""
        file = Path(folder) / "config.json"
        if not file.is_file():
            return None
        try:
            return _shape(json.loads(file.read_text(encoding="utf-8")))
        except (KeyError, TypeError, ValueError):
            return None

    def forward(self, tokens: Ints, head_tokens: int) -> float:
        """Operations of a forward pass over sequences of (n,) tokens."""
        length = tokens.astype(np.float64)
        layer = 2.0 * self.layer_weights * length.sum() + 2.0 * self.attention * (length**2).sum()
        return float(self.layers * layer) + 2.0 * self.head * head_tokens


def update_flops(shape: Shape, batch: Batch, epochs: int) -> float:
    """Operations of an update that sees every row of the batch ``epochs`` times."""
    response = batch.lengths("response_ids")
    tokens = batch.lengths("prompt_ids") + response
    return 3.0 * epochs * shape.forward(tokens, int(response.sum()))


def device_peak(device: str) -> float:
    """Operations a second that this process's device can do; 0 where that is not known.

    A GPU's is that of its data sheet; a CPU's is measured, with the threads that are set.
    """
    import torch

    if device == "cuda":
        words = torch.cuda.get_device_name().upper().replace("-", " ").split()
        return next((_PEAKS[word] for word in words if word in _PEAKS), 0.0)
    return _measured() if device == "cpu" else 0.0


def _measured() -> float:
    """The fastest of some products of float32 matrices."""
    import torch

    one = torch.ones(_SIZE, _SIZE)
    best = float("inf")
    with torch.no_grad():
        for _ in range(_TRIES):
            began = time.perf_counter()
            torch.mm(one, one)
            best = min(best, time.perf_counter() - began)
    return 2.0 * _SIZE**3 / best


def _shape(config: Mapping[str, Any]) -> Shape:
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    size = int(config.get("head_dim") or hidden // heads)
    kv = int(config.get("num_key_value_heads") or heads)
    attention = hidden * size * (2 * heads + 2 * kv)
    mlp = 3 * hidden * _width(config)
    return Shape(
        layers=int(config["num_hidden_layers"]),
        layer_weights=attention + mlp,
        attention=heads * size,
        head=hidden * int(config["vocab_size"]),
    )


def _width(config: Mapping[str, Any]) -> int:
    """Width of the feed-forward layer that a token passes, all of its experts together."""
    experts = int(config.get("num_experts_per_tok") or 0)
    if not experts:
        return int(config["intermediate_size"])
    one = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    return experts * one + int(config.get("shared_expert_intermediate_size") or 0)
