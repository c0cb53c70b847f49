"""On a rollout replica: the frozen base that came once, and the adapters of each version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlframe.interfaces.checkpoint import BaseWeights, FetchedWeights

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.adapters import Adapters
    from rlframe.interfaces.checkpoint import Transport
    from rlframe.layout import Plan

__all__ = ["ReplicaAdapters"]


class ReplicaAdapters:
    """One replica's rank: ``rank`` is its number in the plans."""

    def __init__(self, plan: Plan, rank: int, base: Mapping[str, Tensor]) -> None:
        self._rank, self._base = rank, base
        self._pieces, self._params = plan.target.ranks[rank], plan.target.params
        self._last: BaseWeights | None = None

    def fetch(
        self,
        transport: Transport,
        plan: Plan,
        adapters: Adapters,
        version: int,
        receipts: Sequence[Any],
        served: int,
    ) -> FetchedWeights:
        """Weights of a version by key, merged in new storage.

        ``served`` is the version that samples now. Raises SyncError for missing or wrong data.
        """
        from rlframe.merging import MergedWeights

        last = self._last if self._last is not None and self._last.version == served else None
        got = transport.fetch(plan, self._rank, version, receipts, last)
        self._last = BaseWeights(version, got.tensors)
        device = next(iter(self._base.values())).device
        merged = MergedWeights(self._pieces, self._params, adapters, device)
        return FetchedWeights(merged.fill(self._base, got.tensors), got.nbytes)
