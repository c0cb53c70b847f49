"""FSDP2: parameters, gradients and optimiser state sharded over the ranks by their first dimension.

PyTorch FSDP (arXiv 2304.11277) in its per-parameter form, ``torch.distributed.fsdp.fully_shard``,
over all ranks or inside replicas (HSDP), alone or over a model that tensor parallelism has cut.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rlframe.calling.protocol import Mesh
from rlframe.config import Config as FitConfig
from rlframe.config import check_range
from rlframe.errors import ConfigError, ModelError
from rlframe.weights.layout import Layout, ParamInfo
from rlframe_strategies.base import TorchStrategy
from rlframe_strategies.context import share_inputs, use_context
from rlframe_strategies.grid import Grid, Sizes
from rlframe_strategies.groups import ProcessGroup
from rlframe_strategies.module import LanguageModel
from rlframe_strategies.offload import HostActivations
from rlframe_strategies.peers import Peers
from rlframe_strategies.sharded_layout import dim0_layout, sharded_layout
from rlframe_strategies.tensor_parallel import TensorParallel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensordict import TensorDict
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from rlframe.algorithm import Divergence, Output
    from rlframe.interfaces.strategy import Strategy
    from rlframe_strategies.divergence import Beside
    from rlframe_strategies.packing import Inputs

__all__ = ["FSDPStrategy", "dim0_layout"]

_Dtype = Literal["none", "float32", "bfloat16", "float16"]


class FSDPStrategy(TorchStrategy):
    """Any number of ranks, one included: ``world = dp x cp x tp``, see :mod:`grid`.

    Ranks of one ``cp x tp`` block get the same rows: to the outside (``mesh``) they are a tensor
    axis of that size. Gradients are summed, not averaged. Tied weights are one parameter, under
    its first name.
    """

    capabilities = frozenset({"dp", "tp", "packing", "grad-checkpoint", "lora"})

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
        activation_offload: bool = False
        """Keep what the backward pass needs in host memory until then."""
        replicas: int = 1
        """Replicas of the weights, at least 1 (HSDP): sharded inside one, equal across them."""
        tp: int = 1
        """Tensor-parallel ranks, at least 1: they share heads, neurons and the vocabulary."""
        cp: int = 1
        """Context-parallel ranks, at least 1: they share the tokens of the same rows."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            for name in ("replicas", "tp", "cp"):
                check_range(self, name, 1)

    tensor: TensorParallel | None = None
    context: Peers | None = None

    @staticmethod
    def validate(config: FitConfig) -> None:
        """Also refuse early what :meth:`check_adapters` refuses in a worker."""
        TorchStrategy.validate(config)
        for name in ("policy", *config.roles):
            role = config.role(name)
            rank, options = role.model.lora.rank, role.strategy.config
            if rank and isinstance(options, FSDPStrategy.Config) and options.tp > 1:
                raise ConfigError(_no_adapters(rank, options.tp))

    @classmethod
    def mesh_of(cls, config: Any, world: int) -> Mesh:
        """Blocks of ``cp x tp`` ranks with the same rows are the tensor axis."""
        sizes = Sizes.of(config, world)
        return Mesh(dp=sizes.dp, tp=sizes.cp * sizes.tp)

    def start(self) -> None:
        """Join the process group and lay the meshes over it."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.group = ProcessGroup(self.rank, self.device)
        self.sizes = Sizes.of(self.config, self.rank.world)
        self.grid = Grid(self.sizes, self.rank.rank, self.device.type)

    def place(self, module: LanguageModel) -> None:
        """Cut the model by tensor rank; shard every layer, then what is left, on the mesh."""
        from torch.distributed.fsdp import fully_shard

        for name, parameter in module.named_weights():
            if parameter.ndim == 0:
                raise ModelError(f"fsdp cannot shard '{name}', a parameter without dimensions")
        sizes, place = self.sizes, self.grid.place
        if sizes.cp > 1:
            heads = module.lm.config.get_text_config().num_attention_heads // sizes.tp
            use_context(module, self.spec.model.attn, heads, sizes.cp)
            self.context = Peers(self.grid.context, sizes.cp, place.context)
        if sizes.tp > 1:
            peers = Peers(self.grid.tensor, sizes.tp, place.tensor)
            self.tensor = TensorParallel(module, self.params, peers)
        options = self._options(self.grid.weights)
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

    def run(
        self, inputs: Inputs, computes: Sequence[str], beside: Beside | None
    ) -> dict[str, Tensor]:
        """See the base; context-parallel ranks share the tokens."""
        kept = self.config.activation_offload and torch.is_grad_enabled()
        with HostActivations() if kept else nullcontext():
            if self.context is None:
                return super().run(inputs, computes, beside)
            return share_inputs(inputs, self.context).run(self.module, computes, beside)

    def local(self, parameter: Tensor) -> Tensor:
        """The local tensor of a DTensor."""
        shard: Tensor = parameter.detach().to_local()  # type: ignore[attr-defined]
        return shard

    def full(self, parameter: Tensor) -> Tensor:
        """Gather a parameter."""
        mine = _gathered(parameter)
        if self.tensor is None:
            return mine
        name = next(n for n, p in self.module.named_weights() if p is parameter)
        return self.tensor.whole(name, mine)

    def layout(self) -> Layout:
        """Rows of the first dimension of each tensor rank's part, shard by shard."""
        if self.tensor is None:
            return self.layout_of(self.params)
        return sharded_layout(self.tensor.layout, self.sizes)

    def layout_of(self, params: Mapping[str, ParamInfo]) -> Layout:
        """The same for any parameters that no tensor rank cuts."""
        return sharded_layout(Layout.full(params), self.sizes)

    def check_adapters(self) -> None:
        """Raise ConfigError under tensor parallelism, which cuts the layers."""
        if self.sizes.tp > 1:
            raise ConfigError(_no_adapters(self.spec.model.lora.rank, self.sizes.tp))

    def gradients(self) -> dict[str, Tensor]:
        """See the base; what several tensor ranks have parts of is summed over them."""
        mine = super().gradients()
        return mine if self.tensor is None else self.tensor.complete(mine)

    def counts(self, name: str) -> bool:
        """The first replica, and of tensor ranks with the same part the first one."""
        first = self.grid.place.replica == 0
        return first and (self.tensor is None or self.tensor.counts(name))

    def sum_squares(self, local: Tensor) -> Tensor:
        """What is counted is disjoint, so squares add up."""
        return self.group.reduce(local)

    def reduce(self, values: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """All-reduce over the data-parallel ranks; a new tensor."""
        return self.group.reduce(values, op, self.grid.data)

    def attach(self, other: Strategy, form: Divergence) -> None:
        """See the base. Raises ConfigError where the other's vocabulary is cut otherwise."""
        theirs = other.sizes.tp if isinstance(other, FSDPStrategy) else 1
        if self.sizes.tp != theirs:
            raise ConfigError(
                f"strategy.tp={self.sizes.tp}: role '{form.role}' has {theirs}, but both must cut "
                f"the vocabulary alike; set roles.{form.role}.strategy.tp={self.sizes.tp}"
            )
        super().attach(other, form)

    def tokens(self) -> int:
        """See the base."""
        cut = self.module.vocabulary
        return super().tokens() if cut is None else cut.size

    def head(self) -> tuple[Tensor, Tensor | None]:
        """See the base; of a vocabulary that is cut, this rank's part."""
        head = self.module.lm.get_output_embeddings()
        bias = getattr(head, "bias", None)
        return _gathered(head.weight), None if bias is None else _gathered(bias)

    @property
    def collective(self) -> bool:
        """Other ranks wait for this one's part of every gather."""
        return self.rank.world > 1

    def close(self) -> None:
        """Drop the module and leave the process group."""
        super().close()
        self.group.leave()


def _no_adapters(rank: int, tp: int) -> str:
    return (
        f"model.lora.rank={rank}: strategy 'fsdp' trains no adapters under tensor parallelism: "
        f"use strategy.tp=1 (now {tp})"
    )


def _sharded(module: LanguageModel) -> list[FSDPModule]:
    from torch.distributed.fsdp import FSDPModule

    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def _gathered(parameter: Tensor) -> Tensor:
    """A tensor rank's whole part of a parameter; its shards take part."""
    part: Tensor = parameter.detach().full_tensor()  # type: ignore[attr-defined]
    return part
