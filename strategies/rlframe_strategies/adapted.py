"""What a strategy with adapters gives others: merged weights, the base, the adapters alone."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlframe.errors import ConfigError
from rlframe.interfaces.strategy import ModelSpec, Strategy
from rlframe.weights.adapters import Adapters
from rlframe.weights.layout import Box, Layout, ParamInfo
from rlframe.weights.merging import MergedWeights, merge
from rlframe_strategies.passes import Passes
from rlframe_strategies.side_by_side import mates

if TYPE_CHECKING:
    from rlframe.config import Config
    from rlframe_strategies.lora import Lora
    from rlframe_strategies.module import LanguageModel

__all__ = ["Adapted"]


class Adapted(Passes):
    """The part of a strategy that knows of adapters; without any, weights are what they are.

    ``params`` are the model's parameters, without adapters; ``stored`` those that are trained and
    saved where there are adapters (they, and a number head), else all.
    """

    spec: ModelSpec
    source: str
    params: Mapping[str, ParamInfo]
    stored: Mapping[str, ParamInfo]
    lora: Lora | None = None
    lays_side_by_side = False
    """Whether :mod:`side_by_side` orders the weights, so that merged ones are ordered too."""
    _merged: MergedWeights | None = None
    _drawn = (-1, 0)

    @staticmethod
    def validate(config: Config) -> None:
        """Raise ConfigError where adapters are asked for and peft is not there."""
        models = [config.model, *(role.model for role in config.roles.values())]
        rank = max(model.lora.rank for model in models)
        if rank and importlib.util.find_spec("peft") is None:
            raise ConfigError(
                f"model.lora.rank={rank} needs the package 'peft': pip install 'rlframe[peft]'"
            )

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """This rank's storage of every parameter by canonical name, adapters included."""

    def layout_of(self, params: Mapping[str, ParamInfo]) -> Layout:
        """Where any parameters of the module lie; by default whole on every rank."""
        return Layout.full(params, self.rank.world)

    def check_adapters(self) -> None:
        """Raise ConfigError where adapters cannot be trained."""
        if "lora" not in self.capabilities:
            raise ConfigError(
                f"model.lora.rank={self.spec.model.lora.rank}: {type(self).__name__} trains no "
                "adapters: use --strategy ddp or fsdp"
            )

    def put_adapters(self, module: LanguageModel) -> None:
        """Put adapters into a module that is about to be placed, where they are asked for."""
        config = self.spec.model.lora
        if config.rank and self.spec.optim is not None:
            from rlframe_strategies.lora import Lora

            self.check_adapters()
            self.lora = Lora(module, config, self.spec.seed)
        known = {
            name: ParamInfo(tuple(p.shape), str(p.dtype).removeprefix("torch."))
            for name, p in module.named_weights()
        }
        names = self.lora.names if self.lora else set()
        self.params = {name: info for name, info in known.items() if name not in names}
        self.stored = self.params
        if self.lora:
            trained = {name for name, p in module.named_weights() if p.requires_grad}
            self.stored = {name: info for name, info in known.items() if name in trained}

    def drawing(self) -> AbstractContextManager[None]:
        """Dropout of the adapters, by run, optimiser step, micro-batch and data-parallel rank."""
        if self.lora is None or self.optimiser is None:
            return nullcontext()
        if self._drawn[0] != self.optimiser.steps:
            self._drawn = (self.optimiser.steps, 0)
        step, micro = self._drawn
        self._drawn = (step, micro + 1)
        return self.lora.drawing(self.device, step, micro, self.mesh.dp_rank(self.rank.rank))

    def stored_layout(self) -> Layout:
        """Where what a snapshot holds lies."""
        return self.layout() if self.lora is None else self.layout_of(self.stored)

    def stored_weights(self) -> dict[str, Tensor]:
        """This rank's storage of what is trained and saved."""
        return {name: w for name, w in self.weights().items() if name in self.stored}

    # --- weights for others -------------------------------------------------------------------

    def views(self) -> Mapping[str, Tensor]:
        """Weights by canonical name: the storage itself, or merged where an adapter changes it."""
        if self.lora is None:
            return self.weights()
        adapters = self._adapters(self.lora)
        if self._merged is None:
            beside = mates(adapters.pairs) if self.lays_side_by_side else ()
            pieces = self.layout().ranks[self.rank.rank]
            self._merged = MergedWeights(pieces, self.params, adapters, self.device, beside)
        return self._merged.fill(self.base_views(), dict(self._whole(self.lora.names)))

    def base_views(self) -> Mapping[str, Tensor]:
        """See :class:`Strategy`."""
        return {name: w for name, w in self.weights().items() if name in self.params}

    def adapters(self) -> Adapters | None:
        """See :class:`Strategy`."""
        return None if self.lora is None else self._adapters(self.lora)

    def adapter_views(self) -> Mapping[str, Tensor]:
        """See :class:`Strategy`."""
        names = self.lora.names if self.lora else set()
        return {name: w for name, w in self.weights().items() if name in names}

    @property
    def extra_bytes(self) -> int:
        """Bytes of merged weights, which exist beside the trained ones."""
        return self._merged.nbytes if self._merged else 0

    def release_views(self) -> None:
        """See :class:`Strategy`."""
        self._merged = None

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter whole, adapters merged; every rank takes part."""
        pairs = self.lora.pairs if self.lora else {}
        for name, tensor in self._whole(self.params):
            pair = pairs.get(name)
            if self.lora is None or pair is None:
                yield name, tensor
                continue
            low_rank = dict(self._whole((pair.down, pair.up)))
            box = Box((0,) * tensor.ndim, tuple(tensor.shape))
            out = torch.empty_like(tensor)
            merge(out, tensor, (low_rank[pair.down], low_rank[pair.up]), self.lora.scale, box)
            yield name, out

    def without_adapters(self) -> Strategy:
        """See :class:`Strategy`."""
        from rlframe_strategies.base_model import BaseModel

        if self.lora is None:
            raise ConfigError("a model without adapters (model.lora) has no base of its own")
        return BaseModel(self, self.lora)

    def export_adapters(self, directory: Path) -> None:
        """See :class:`Strategy`."""
        if self.lora is None:
            raise ConfigError(
                "the run trained the whole model (model.lora.rank=0), so that there are no "
                "adapters to write: export it without --adapter"
            )
        from rlframe_strategies.exporting import write_adapters

        tensors = {name: tensor.cpu() for name, tensor in self._whole(self.stored)}
        if self.rank.rank == 0:
            write_adapters(self.lora, self.module.kind, tensors, self.source, directory)

    def _adapters(self, lora: Lora) -> Adapters:
        infos = {name: info for name, info in self.stored.items() if name in lora.names}
        return Adapters(self.layout_of(infos), lora.pairs, lora.scale)

    def _whole(self, names: Any) -> Iterator[tuple[str, Tensor]]:
        """Some parameters whole, in the module's order; every rank takes part."""
        for name, parameter in self.module.named_weights():
            if name in names:
                yield name, self.full(parameter)
