"""Every element of a model a number of its own: buffers by layout, and plans carried out."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rlframe.weights.layout import Layout, ParamInfo, Piece
from rlframe.weights.model_cuts import cuts_of_model
from rlframe.weights.sharding import Cut
from rlframe.weights.storage import allocate, dtypes, local_view
from rlframe_plugins.resharders.planner import missing_moves

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 3,
    "vocab_size": 20,
}


def cuts_of(config) -> tuple[dict[str, ParamInfo], dict[str, Cut]]:
    with torch.device("meta"):
        return cuts_of_model(AutoModelForCausalLM.from_config(config))


def whole(params: dict[str, ParamInfo]) -> dict[str, torch.Tensor]:
    """Every element of a model is another number."""
    start, out = 0, {}
    for name, info in params.items():
        size = int(np.prod(info.shape))
        out[name] = torch.arange(start, start + size, dtype=torch.float32).reshape(info.shape)
        start += size
    return out


def filled(layout: Layout, rank: int, full: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    buffers = allocate(layout.ranks[rank], dtypes(layout.params), torch.device("cpu"))
    for piece in layout.ranks[rank]:
        view_of(piece, buffers)[:] = full[piece.name][piece.box.slices()]
    return buffers


def view_of(piece: Piece, buffers: dict[str, torch.Tensor]) -> torch.Tensor:
    return local_view(piece, buffers[piece.view.key])


def holders(layout: Layout, name: str, ranks: list[int]) -> np.ndarray:
    """How many of these ranks hold each element of a parameter."""
    cells = np.zeros(layout.params[name].shape, int)
    for rank in ranks:
        for piece in layout.ranks[rank]:
            if piece.name == name:
                cells[piece.box.slices()] += 1
    return cells


def reshard(source: Layout, target: Layout) -> int:
    """Carry a plan out in this process; every rank must end with the target. Elements moved."""
    full = whole(source.params)
    have = [filled(source, rank, full) for rank in range(source.world)]
    moves = missing_moves(source, target)
    types = dtypes(target.params)
    for rank, pieces in enumerate(target.ranks):
        buffers = allocate(pieces, types, torch.device("cpu"))
        arrived = [(m.source, m.name, m.box) for m in moves if m.target == rank]
        arrived += [(rank, p.name, p.box) for p in source.ranks[rank] if p.box.size]
        for sender, name, box in arrived:
            held = next(
                p for p in source.ranks[sender] if p.name == name and p.box.intersect(box) == box
            )
            data = view_of(held, have[sender])[box.slices(held.box)]
            for piece in pieces:
                common = piece.box.intersect(box) if piece.name == name else None
                if common is not None:
                    view_of(piece, buffers)[common.slices(piece.box)] = data[common.slices(box)]
        for piece in pieces:
            assert torch.equal(view_of(piece, buffers), full[piece.name][piece.box.slices()])
    return sum(m.box.size for m in moves)
