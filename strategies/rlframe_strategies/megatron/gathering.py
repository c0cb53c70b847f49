"""Whole weights on the first rank, for a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlframe.weights.layout import Layout
from rlframe.weights.storage import dtypes, local_view
from rlframe_strategies.boxes import owned_pieces

if TYPE_CHECKING:
    from rlframe_strategies.module import LanguageModel

__all__ = ["gather_weights", "with_generation_config"]


@torch.no_grad()
def gather_weights(layout: Layout, rank: int, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every parameter by name, on the CPU of rank 0; nothing elsewhere. All ranks take part."""
    from torch import distributed as dist

    types = dtypes(layout.params)
    whole = {}
    if rank == 0:
        whole = {n: torch.empty(p.shape, dtype=types[n]) for n, p in layout.params.items()}
    device = next(iter(views.values())).device
    for owner in range(layout.world):
        for piece in owned_pieces(layout, owner):
            if rank == owner:
                part = local_view(piece, views[piece.view.key]).contiguous()
                if owner:
                    dist.send(part, 0)
            elif rank == 0:
                part = torch.empty(piece.box.shape, dtype=types[piece.name], device=device)
                dist.recv(part, owner)
            else:
                continue
            if rank == 0:
                whole[piece.name][piece.box.slices()] = part.cpu()
    return whole


def with_generation_config(module: LanguageModel, source: str) -> LanguageModel:
    """The module with the generation config that its model came with, if it did."""
    from transformers import GenerationConfig

    try:
        module.lm.generation_config = GenerationConfig.from_pretrained(source)
    except OSError:
        return module
    return module
