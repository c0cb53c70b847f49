"""The policy's weights in a rollout engine of the same worker, and what becomes of them between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from rlframe.interfaces.checkpoint import HandedOver
from rlframe.weights.moving import Mover
from rlframe.weights.storage import moved, named_views

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.interfaces.checkpoint import AfterGeneration
    from rlframe.interfaces.strategy import Strategy
    from rlframe.weights.layout import Plan

__all__ = ["HandOver"]


class HandOver:
    """One trainer's rank and one rollout engine: two buffers, or one where the layouts are equal.

    The trainer's buffer stays where it is. The other one is filled by the plan at each version, and
    after generation kept, moved to the host or given back, as ``after`` says.
    """

    def __init__(
        self,
        peer: Any,
        strategy: Strategy,
        plan: Plan,
        *,
        copy: bool,
        bucket_mib: int,
        after: AfterGeneration,
    ) -> None:
        self._peer, self._strategy, self._after = peer, strategy, after
        self._device = torch.device(strategy.rank.device)
        self._own = plan.source.ranks[strategy.rank.rank]
        self._version, self._rests = -1, False
        self._filled: Mapping[str, Tensor] = {}
        self._mover = None
        if copy or not plan.shared or named_views(self._own, strategy.views()) is None:
            self._mover = Mover(plan, strategy.rank.rank, self._device, bucket_mib=bucket_mib)

    def publish(self, version: int) -> HandedOver:
        """Fill the generation buffer and have the rollout engine use it."""
        self._give(version, self._fill())
        mover = self._mover
        if mover is None:
            return HandedOver()
        return HandedOver(mover.received, mover.extra_bytes + mover.staging_bytes)

    @property
    def gives_back(self) -> bool:
        """Whether weights are given back after generation, not only a cache."""
        return self._after in ("offload", "release")

    def rest(self) -> None:
        """Generation is over for now."""
        if self._after == "keep" or self._rests or self._version < 0:
            return
        self._rests = True
        if self._after == "cache":
            self._peer.sleep(1)
            return
        self._peer.sleep(2)
        if self._mover is not None:
            host = moved(self._filled, torch.device("cpu")) if self._after == "offload" else {}
            self._filled = host
            self._mover.release()

    def ready(self) -> None:
        """Generation comes; every rank of the plan takes part."""
        if not self._rests:
            return
        if self._after == "cache":
            self._peer.wake()
            self._rests = False
            return
        back = moved(self._filled, self._device) if self._filled else self._fill()
        self._give(self._version, back)

    def _fill(self) -> Mapping[str, Tensor]:
        views = self._strategy.views()
        if self._mover is not None:
            self._filled = self._mover.run(views)
            return self._filled
        named = named_views(self._own, views)
        assert named is not None, "storage is shared"
        return named

    def _give(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        self._peer.load(version, tensors)
        self._version = version
        if self._rests:
            self._peer.wake()
            self._rests = False
