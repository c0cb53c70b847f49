"""Tensor parallelism by a model's own plan (``tp_plan`` of transformers), over plain tensors.

Column-cut projections give a rank its heads or neurons, row-cut ones sum what the ranks make of
theirs (Megatron-LM, arXiv 1909.08053); embedding and head are cut by vocabulary. Every parameter
stays a plain tensor, this rank's part, so that FSDP shards it like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from rlframe.calling.protocol import Mesh
from rlframe.errors import ConfigError
from rlframe.weights.layout import Layout, ParamInfo, Piece
from rlframe.weights.model_cuts import cuts_of_model
from rlframe.weights.sharding import Cut, grid_layout
from rlframe.weights.storage import local_view
from rlframe_strategies.classifier import Classifier
from rlframe_strategies.tensor_plan import styles_of
from rlframe_strategies.vocabulary import Vocabulary

if TYPE_CHECKING:
    from rlframe_strategies.module import LanguageModel
    from rlframe_strategies.peers import Peers

__all__ = ["TensorParallel"]

_GROUPS = "num_key_value_groups"
"""Attribute of transformers' attention: query heads of a key-value head."""


class TensorParallel:
    """One tensor rank's part of a model: cuts it when made. Raises ConfigError where it cannot.

    ``layout`` is that over the tensor ranks alone.
    """

    def __init__(
        self, module: LanguageModel, params: Mapping[str, ParamInfo], peers: Peers
    ) -> None:
        self.peers = peers
        if isinstance(module, Classifier):
            raise ConfigError("strategy.tp: a sequence classifier of its own kind has no plan")
        lm = module.lm
        styles = styles_of(lm, peers.size)
        self._cuts: dict[str, Cut] = dict.fromkeys(params, Cut())
        self._cuts |= cuts_of_model(lm)[1]
        self.layout = grid_layout(params, self._cuts, Mesh(tp=peers.size))
        self._partial = {
            f"{name}.{leaf}"
            for name, style in styles.items()
            if style == "replicated_with_grad_allreduce"
            for leaf, _ in lm.get_submodule(name).named_parameters()
        }
        self._pieces = {piece.name: piece for piece in self.layout.ranks[peers.rank]}
        self._cut(module)
        _replace(lm, styles, peers)
        self._cut_vocabulary(module)

    @torch.no_grad()
    def _cut(self, module: LanguageModel) -> None:
        for name, parameter in module.named_weights():
            if self._cuts[name].axis is not None:
                box = self._pieces[name].box
                parameter.data = parameter.data[box.slices()].clone()
        for part in module.modules():
            if hasattr(part, _GROUPS):
                setattr(part, _GROUPS, _groups(module.lm.config, self.peers.size))

    def _cut_vocabulary(self, module: LanguageModel) -> None:
        embedding = module.lm.get_input_embeddings()
        names = {id(p): name for name, p in module.named_weights()}
        box = self._pieces[names[id(embedding.weight)]].box
        _cut_embedding(embedding, box.offset[0], self.peers)
        head = module.lm.get_output_embeddings()
        weight = getattr(head, "weight", None)
        if weight is not None:
            name = names[id(weight)]
            low, size = self._pieces[name].box.offset[0], self.layout.params[name].shape[0]
            module.vocabulary = Vocabulary(self.peers, low, size)

    # --- gradients and whole tensors ------------------------------------------------------------

    def counts(self, name: str) -> bool:
        """Whether this is the first of the ranks that hold the same part of a parameter."""
        part, sharing = self._share(name)
        return part * sharing == self.peers.rank

    def _share(self, name: str) -> tuple[int, int]:
        """Which distinct part of a parameter this rank holds, and how many ranks hold it."""
        cut, size = self._cuts[name], self.peers.size
        if cut.axis is None:
            return 0, size
        sharing = max(size // cut.units, 1) if cut.units else 1
        return self.peers.rank // sharing, sharing

    def complete(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum, over the ranks, gradients that each of them has a part of.

        Those are norms over a rank's own heads, and key-value heads that several ranks hold.
        """
        flat: dict[torch.dtype, list[tuple[str, Tensor]]] = {}
        for name, gradient in gradients.items():
            part, sharing = self._share(name)
            if sharing == 1 or (self._cuts[name].axis is None and name not in self._partial):
                continue
            whole = gradient.new_zeros(self.peers.size // sharing, gradient.numel())
            whole[part] = gradient.reshape(-1)
            flat.setdefault(gradient.dtype, []).append((name, whole))
        out = dict(gradients)
        for parts in flat.values():
            total = self.peers.all_reduce(torch.cat([whole.reshape(-1) for _, whole in parts]))
            sums = torch.split(total, [whole.numel() for _, whole in parts])
            for (name, whole), summed in zip(parts, sums, strict=True):
                mine = summed.view_as(whole)[self._share(name)[0]]
                out[name] = mine.view_as(gradients[name])
        return out

    def whole(self, name: str, mine: Tensor) -> Tensor:
        """A whole parameter from this tensor rank's part; every tensor rank takes part."""
        if self._cuts[name].axis is None:
            return mine
        held = [_piece(self.layout, rank, name) for rank in range(self.peers.size)]
        flat = mine.new_zeros(max(piece.box.size for piece in held))
        flat[: mine.numel()] = mine.reshape(-1)
        whole = mine.new_empty(self.layout.params[name].shape)
        for piece, part in zip(held, self.peers.gather(flat), strict=True):
            whole[piece.box.slices()] = local_view(piece, part)
        return whole


def _piece(layout: Layout, rank: int, name: str) -> Piece:
    return next(piece for piece in layout.ranks[rank] if piece.name == name)


def _groups(config: Any, size: int) -> int:
    """Query heads of a key-value head, of those that a rank has."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    kept = getattr(text, "num_key_value_heads", None) or heads
    return int(heads // size // max(kept // size, 1))


def _replace(lm: Any, styles: Mapping[str, str], peers: Peers) -> None:
    shared: dict[int, _Shared] = {}
    for name, style in styles.items():
        parent_name, _, leaf = name.rpartition(".")
        parent, layer = lm.get_submodule(parent_name), lm.get_submodule(name)
        if style == "colwise":
            if id(parent) not in shared:
                shared[id(parent)] = _Shared(parent, peers)
            setattr(parent, leaf, ColumnLinear(layer, shared[id(parent)]))
        elif style == "rowwise":
            setattr(parent, leaf, RowLinear(layer, peers))


class _Shared:
    """One copy of an input that several projections of a module read.

    Its gradient is so summed over the ranks once.
    """

    def __init__(self, parent: nn.Module, peers: Peers) -> None:
        self._peers = peers
        self._last: tuple[Tensor, Tensor] | None = None
        parent.register_forward_pre_hook(self._forget)
        parent.register_forward_hook(self._forget)

    def _forget(self, *_: Any) -> None:
        self._last = None

    def copy(self, values: Tensor) -> Tensor:
        if self._last is None or self._last[0] is not values:
            self._last = values, self._peers.copy(values)
        return self._last[1]


class ColumnLinear(nn.Module):
    """A rank's output features of a linear layer, of an input that all ranks have."""

    def __init__(self, layer: nn.Linear, shared: _Shared) -> None:
        super().__init__()
        self.weight, self.bias, self._shared = layer.weight, layer.bias, shared

    def forward(self, values: Tensor) -> Tensor:
        """(..., in) to (..., this rank's out)."""
        return linear(self._shared.copy(values), self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer over a rank's input features, summed over the ranks."""

    def __init__(self, layer: nn.Linear, peers: Peers) -> None:
        super().__init__()
        self.weight, self.bias, self._peers = layer.weight, layer.bias, peers

    def forward(self, values: Tensor) -> Tensor:
        """(..., this rank's in) to (..., out)."""
        out = self._peers.sum(linear(values, self.weight))
        return out if self.bias is None else out + self.bias


def _cut_embedding(embedding: Any, low: int, peers: Peers) -> None:
    """Look up a rank's own tokens, zero for those of others, and sum over the ranks."""
    count = len(embedding.weight)
    embedding.num_embeddings = count
    if embedding.padding_idx is not None:
        own = embedding.padding_idx - low
        embedding.padding_idx = own if 0 <= own < count else None
    outside: list[Tensor] = []

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        ids = args[0] - low
        others = (ids < 0) | (ids >= count)
        outside[:] = [others]
        return (ids.masked_fill(others, 0), *args[1:])

    def after(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return peers.sum(out.masked_fill(outside.pop()[..., None], 0.0))

    embedding.register_forward_pre_hook(before)
    embedding.register_forward_hook(after)
