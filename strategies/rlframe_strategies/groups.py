"""Process groups of PyTorch: joining, summing over ranks, leaving."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from rlframe.errors import ConfigError, TrainingError
from rlframe.interfaces.strategy import RankInfo

__all__ = ["ProcessGroup"]


_members: list[ProcessGroup] = []
"""Who uses a group that one of them joined; the last one to leave destroys it."""


class ProcessGroup:
    """The default group of this process: joined unless it exists, shared by all its strategies.

    One rank alone needs no rendezvous. Raises ``ConfigError`` where several ranks have no
    ``init_method``, ``TrainingError`` where a group of another size exists.
    """

    def __init__(self, rank: RankInfo, device: torch.device) -> None:
        from torch import distributed as dist

        self.world = rank.world
        if not dist.is_initialized():
            self._join(rank, device)
            _members[:] = [self]
        elif dist.get_world_size() != rank.world or dist.get_rank() != rank.rank:
            raise TrainingError(
                f"this process is rank {dist.get_rank()} of a group of {dist.get_world_size()}, "
                f"the strategy wants rank {rank.rank} of {rank.world}"
            )
        elif _members:
            _members.append(self)

    def _join(self, rank: RankInfo, device: torch.device) -> None:
        from torch import distributed as dist

        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if rank.world == 1:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
            return
        if rank.init_method is None:
            raise ConfigError(f"{rank.world} ranks need an init_method to find each other")
        dist.init_process_group(
            backend, init_method=rank.init_method, rank=rank.rank, world_size=rank.world
        )

    def reduce(
        self, values: Tensor, op: Literal["sum", "max"] = "sum", among: Any = None
    ) -> Tensor:
        """All-reduce of a copy, over all ranks or over those of the group ``among``."""
        from torch import distributed as dist

        total = values.clone()
        if self.world > 1:
            how = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
            dist.all_reduce(total, how, group=among)
        return total

    @property
    def last(self) -> bool:
        """Whether :meth:`leave` destroys the group."""
        return _members == [self]

    def leave(self) -> None:
        """Destroy the group if this is the last that uses it; not one that others had made."""
        from torch import distributed as dist

        if self in _members:
            _members.remove(self)
            if not _members and dist.is_initialized():
                dist.destroy_process_group()
