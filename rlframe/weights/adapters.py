"""Low-rank adapters as data: which weights they change, and where their own tensors lie.

LoRA (arXiv 2106.09685): a frozen weight (out, in) acts as ``weight + scale * up @ down`` with
``down`` (r, in) and ``up`` (out, r).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlframe.weights.layout import Layout

__all__ = ["Adapters", "LowRank"]


@dataclass(frozen=True)
class LowRank:
    """Names of the two tensors that change one weight: ``down`` (r, in) and ``up`` (out, r)."""

    down: str
    up: str


@dataclass(frozen=True)
class Adapters:
    """The adapters of a model on a trainer.

    ``layout`` is of their own tensors; ``pairs`` says, by canonical name, which weights change.
    """

    layout: Layout
    pairs: Mapping[str, LowRank]
    scale: float
