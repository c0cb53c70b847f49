"""FSDP2: parameters, gradients and optimiser state sharded over the ranks by their first dimension.

PyTorch FSDP (arXiv 2304.11277) in its per-parameter form, ``torch.distributed.fsdp.fully_shard``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rlframe.errors import ModelError
from rlframe.layout import Box, Layout, LocalView, ParamInfo, Piece, strides
from rlframe_strategies.base import TorchStrategy
from rlframe_strategies.groups import ProcessGroup
from rlframe_strategies.module import LanguageModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDict
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from rlframe.algorithm import Output

__all__ = ["FSDPStrategy", "dim0_layout"]

_Dtype = Literal["none", "float32", "bfloat16", "float16"]


class FSDPStrategy(TorchStrategy):
    """Any number of data-parallel ranks, one included.

    Gradients are summed, not averaged. Tied weights are one parameter, under its first name.
    """

    capabilities = frozenset({"dp", "packing", "grad-checkpoint"})

    @dataclass(frozen=True)
    class Config:
        """Options of ``strategy: fsdp``."""

        packing: Literal["auto", "on", "off"] = "auto"
        """auto, on or off: lay rows side by side instead of padding them."""
        reshard_after_forward: bool = True
        """Free a layer's gathered weights after its forward pass and gather them again."""
        param_dtype: _Dtype = "none"
        """Type of computation: none (the weights' own), float32, bfloat16 or float16."""
        reduce_dtype: _Dtype = "none"
        """Type in which gradients are summed: none (that of computation), float32, ..."""
        cpu_offload: bool = False
        """Keep sharded weights, gradients and optimiser state in host memory."""

    def start(self) -> None:
        """Join the process group and lay the mesh over it."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.group = ProcessGroup(self.rank, self.device)

    def place(self, module: LanguageModel) -> None:
        """Shard every layer, then what is left, on the mesh."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        for name, parameter in module.named_weights():
            if parameter.ndim == 0:
                raise ModelError(f"fsdp cannot shard '{name}', a parameter without dimensions")
        mesh = init_device_mesh(self.device.type, (self.rank.world,))
        options = self._options(mesh)
        for block in module.blocks():
            reshard = self.config.reshard_after_forward
            fully_shard(block, reshard_after_forward=reshard, **options)
        fully_shard(module, reshard_after_forward=False, **options)
        self.move(module, self.device)
        for part in _sharded(module):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
            part.set_reduce_scatter_unused_params(True, recurse=False)

    def move(self, module: LanguageModel, device: torch.device) -> None:
        """Move the shards, unless they stay in host memory anyway."""
        if not self.config.cpu_offload:
            super().move(module, device)

    def _options(self, mesh: DeviceMesh) -> dict[str, Any]:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

        types = {
            name: None if name == "none" else getattr(torch, name)
            for name in (self.config.param_dtype, self.config.reduce_dtype)
        }
        policy = MixedPrecisionPolicy(
            param_dtype=types[self.config.param_dtype],
            reduce_dtype=types[self.config.reduce_dtype],
            cast_forward_inputs=False,
        )
        options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
        if self.config.cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        return options

    def forward(self, micro: TensorDict, computes: Sequence[str]) -> Output:
        """See the base; weights gathered for the pass are freed, so that none can be stale."""
        try:
            return super().forward(micro, computes)
        finally:
            for part in _sharded(self.module):
                part.reshard()

    def local(self, parameter: Tensor) -> Tensor:
        """The local tensor of a DTensor."""
        shard: Tensor = parameter.detach().to_local()  # type: ignore[attr-defined]
        return shard

    def full(self, parameter: Tensor) -> Tensor:
        """Gather a parameter."""
        whole: Tensor = parameter.detach().full_tensor()  # type: ignore[attr-defined]
        return whole

    def layout(self) -> Layout:
        """Rows of the first dimension, rank by rank."""
        return dim0_layout(self.params, self.rank.world)

    def sum_squares(self, local: Tensor) -> Tensor:
        """Shards are disjoint, so squares add up."""
        return self.group.reduce(local)

    def reduce(self, values: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """All-reduce over the ranks; a new tensor."""
        return self.group.reduce(values, op)

    @property
    def collective(self) -> bool:
        """Other ranks wait for this one's part of every gather."""
        return self.rank.world > 1

    def close(self) -> None:
        """Drop the module and leave the process group."""
        super().close()
        self.group.leave()


def _sharded(module: LanguageModel) -> list[FSDPModule]:
    from torch.distributed.fsdp import FSDPModule

    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def dim0_layout(params: Mapping[str, ParamInfo], world: int) -> Layout:
    """Chunks of ceil(n / world) rows of each parameter; the last ranks may hold none."""
    ranks = tuple(
        tuple(_chunk(name, info.shape, rank, world) for name, info in params.items())
        for rank in range(world)
    )
    return Layout(params, ranks)


def _chunk(name: str, shape: tuple[int, ...], rank: int, world: int) -> Piece:
    size = -(-shape[0] // world)
    start = min(rank * size, shape[0])
    rows = min(size, shape[0] - start)
    box = Box((start,) + (0,) * (len(shape) - 1), (rows, *shape[1:]))
    return Piece(name, box, LocalView(name, 0, strides(shape)))
