"""Megatron's process groups of this process, which all its models share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rlframe.errors import ConfigError
from rlframe_strategies.groups import ProcessGroup
from rlframe_strategies.megatron import shim
from rlframe_strategies.peers import Peers

if TYPE_CHECKING:
    from rlframe.interfaces.strategy import RankInfo

__all__ = ["Parallel", "Sizes"]

_ORDER = "tp-cp-ep-pp-dp"
"""Tensor neighbours first, then stages, then replicas: the order of rlframe's meshes."""

_users: list[Parallel] = []
"""Who uses the groups; the last one to leave ends them."""


@dataclass(frozen=True)
class Sizes:
    """Tensor-parallel ranks, pipeline stages, and runs of layers a stage."""

    tp: int
    pp: int
    vpp: int = 1


class Parallel:
    """This rank's place and groups.

    Raises ConfigError where the process holds models of other sizes.
    """

    def __init__(self, sizes: Sizes, rank: RankInfo, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
            shim.importing_megatron()
        else:
            shim.install()
        from megatron.core import parallel_state

        self.sizes, self._state = sizes, parallel_state
        if _users and _users[0].sizes != sizes:
            raise ConfigError(
                f"this process has models with {_users[0].sizes}, another asks for {sizes}: "
                "Megatron's groups are one set a process, so give roles of one pool the same "
                "strategy.tp, strategy.pp and strategy.vpp, or a pool of their own"
            )
        self._world = ProcessGroup(rank, device)
        if not _users:
            self._start(rank)
        _users.append(self)
        state = parallel_state
        self.stage: int = state.get_pipeline_model_parallel_rank()
        self.data: Any = state.get_data_parallel_group()
        self.data_rank: int = state.get_data_parallel_rank()
        self.data_size: int = state.get_data_parallel_world_size()
        self.peers = Peers(
            state.get_tensor_model_parallel_group(),
            sizes.tp,
            state.get_tensor_model_parallel_rank(),
        )

    def _start(self, rank: RankInfo) -> None:
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        self._state.initialize_model_parallel(
            tensor_model_parallel_size=self.sizes.tp,
            pipeline_model_parallel_size=self.sizes.pp,
            virtual_pipeline_model_parallel_size=self.sizes.vpp if self.sizes.vpp > 1 else None,
            order=_ORDER,
            create_gloo_process_groups=False,
        )
        with torch.random.fork_rng():
            model_parallel_cuda_manual_seed(rank.seed)

    @property
    def is_last(self) -> bool:
        """Whether this rank is of the last pipeline stage, where outputs and losses are."""
        return self.stage == self.sizes.pp - 1

    def reduce(self, values: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """All-reduce of a copy over the replicas."""
        if self.data_size == 1:
            return values.clone()
        return self._world.reduce(values, op, self.data)

    def sum_all(self, values: Tensor) -> Tensor:
        """Sum of a copy over all ranks."""
        return self._world.reduce(values)

    def of_all(self, value: Any) -> list[Any]:
        """A value of every rank, by rank."""
        found: list[Any] = [value] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(found, value)
        return found

    def from_last(self, values: Tensor) -> Tensor:
        """The last stage's values, in place, on all stages of its pipeline."""
        if self.sizes.pp > 1:
            source = self._state.get_pipeline_model_parallel_last_rank()
            group = self._state.get_pipeline_model_parallel_group()
            torch.distributed.broadcast(values, source, group=group)
        return values

    def leave(self) -> None:
        """End the groups if this is the last that uses them."""
        if self in _users:
            _users.remove(self)
            if not _users:
                self._state.destroy_model_parallel()
            self._world.leave()
