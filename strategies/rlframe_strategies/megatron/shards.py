"""This rank's part of gradients and optimiser state, over Megatron's data-parallel buffers.

Megatron sums gradients over the replicas in buckets: with a distributed optimiser each replica gets
the sum of one slice of every bucket, updates the same slice of the weights, and the slices are
gathered (ZeRO-1/2, arXiv 1910.02054). Elements of a slice are named by the parameter they are of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlframe.weights.layout import Box, Layout, LocalView, ParamInfo, Piece
from rlframe.weights.sharding import flat_pieces
from rlframe_strategies.optim import Optimiser, squared_norm

if TYPE_CHECKING:
    from rlframe.config import OptimConfig
    from rlframe.interfaces.strategy import RankInfo
    from rlframe_strategies.megatron.model import Model
    from rlframe_strategies.megatron.parallel import Parallel

__all__ = ["ShardOptimiser", "Shards", "state_layout"]

Span = tuple[int, int]


@dataclass(frozen=True)
class _Shard:
    """Elements ``span`` of a flattened local parameter, and the same of its gradient."""

    span: Span
    weight: Tensor
    gradient: Tensor


class Shards:
    """What this rank updates of the model's local parameters, by the layout's keys."""

    def __init__(self, model: Model, parallel: Parallel, distributed: bool) -> None:
        self._model, self._distributed = model, distributed
        rank, size = (parallel.data_rank, parallel.data_size) if distributed else (0, 1)
        keys = {parameter: key for key, parameter in model.parameters.items()}
        self._held: dict[str, _Shard] = {}
        for chunk in model.chunks:
            for buffer in chunk.buffers:
                self._held.update(_of_buffer(buffer, keys, rank, size))
        first = distributed or parallel.data_rank == 0
        self._counted = {key for key in self._held if first and model.counts(key)}

    @property
    def spans(self) -> dict[str, Span]:
        """Which elements of each local parameter this rank updates."""
        return {key: held.span for key, held in self._held.items()}

    def weights(self) -> dict[str, Tensor]:
        """Flat views of the weights."""
        return {key: held.weight for key, held in self._held.items()}

    def gradients(self) -> dict[str, Tensor]:
        """Flat views of the gradients, summed over replicas and over what shares a parameter."""
        self._model.sum_gradients()
        return {key: held.gradient for key, held in self._held.items()}

    def sum_squares(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Squares () float64 of this rank's part; an element is counted on one rank alone."""
        total = torch.zeros((), dtype=torch.float64, device=self._model.device)
        for key, gradient in gradients.items():
            if key in self._counted:
                total += squared_norm(gradient)
        return total

    def spread_weights(self) -> None:
        """Give the replicas the slices that were updated here."""
        if self._distributed:
            for chunk in self._model.chunks:
                chunk.start_param_sync(force_sync=True)

    def buffers(self) -> list[Tensor]:
        """The gradients of all of this rank's parameters."""
        return [buffer.grad_data for chunk in self._model.chunks for buffer in chunk.buffers]

    def clear(self) -> None:
        """Zero the gradients."""
        for chunk in self._model.chunks:
            chunk.zero_grad_buffer()


def _of_buffer(
    buffer: Any, keys: Mapping[Any, str], rank: int, size: int
) -> Iterator[tuple[str, _Shard]]:
    """The part of every parameter that lies in this rank's slice of a bucket."""
    for bucket in buffer.buckets:
        length = bucket.grad_data.numel() // size
        low = bucket.offset + rank * length
        for parameter in bucket.params_list:
            start, end, _ = buffer.param_index_map[parameter]
            inside = max(start, low), min(end, low + length)
            if inside[0] >= inside[1]:
                continue
            span = inside[0] - start, inside[1] - start
            yield (
                keys[parameter],
                _Shard(
                    span,
                    parameter.detach().view(-1)[slice(*span)],
                    parameter.main_grad.detach().view(-1)[slice(*span)],
                ),
            )


def state_layout(layout: Layout, spans: list[Mapping[str, Span]]) -> Layout:
    """Where the optimiser's state lies: of every rank's pieces what it updates, in flat buffers."""
    ranks = []
    for pieces, mine in zip(layout.ranks, spans, strict=True):
        held = [p for piece in pieces for p in _within(piece, mine, layout.params)]
        ranks.append(tuple(held))
    return Layout(layout.params, tuple(ranks))


def _within(
    piece: Piece, spans: Mapping[str, Span], params: Mapping[str, ParamInfo]
) -> Iterator[Piece]:
    start, end = spans.get(piece.view.key, (0, 0))
    first = piece.view.offset
    low, high = max(start, first), min(end, first + piece.box.size)
    if low >= high:
        return
    info = ParamInfo(piece.box.shape, params[piece.name].dtype)
    view = LocalView(piece.view.key, low - start, ())
    for one in flat_pieces(piece.name, info, (low - first, high - first), view):
        offset = tuple(a + b for a, b in zip(piece.box.offset, one.box.offset, strict=True))
        yield Piece(one.name, Box(offset, one.box.shape), one.view)


class ShardOptimiser(Optimiser):
    """The optimiser over flat slices; updates are counted by Hugging Face's names."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        decays: set[str],
        config: OptimConfig,
        total: int,
        layout: Layout,
        rank: RankInfo,
    ) -> None:
        super().__init__(weights, decays, config, total)
        self._names = tuple(layout.params)
        self._of_key = {piece.view.key: piece.name for piece in layout.ranks[rank.rank]}

    def counts(self) -> dict[str, int]:
        """Every parameter is updated at every step."""
        if self.config.name == "sgd":
            return {}
        return dict.fromkeys(self._names, max(super().counts().values(), default=self.steps))

    def restore(self, steps: int, counts: Mapping[str, int]) -> None:
        """See :class:`Optimiser`."""
        mine = {key: counts[name] for key, name in self._of_key.items() if name in counts}
        super().restore(steps, mine)
