"""On a rollout replica: the frozen base that came once, and the adapters of each version."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlframe.interfaces.checkpoint import BaseWeights, FetchedWeights

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.interfaces.checkpoint import Transport
    from rlframe.weights.adapters import Adapters
    from rlframe.weights.layout import ParamInfo, Plan

__all__ = ["ReplicaAdapters"]


class ReplicaAdapters:
    """One replica's rank: ``rank`` is its number in the plans.

    ``base`` came by ``plan`` in the trainer's types; ``served`` says in which types weights serve.
    """

    def __init__(
        self, plan: Plan, rank: int, base: Mapping[str, Tensor], served: Mapping[str, ParamInfo]
    ) -> None:
        self._rank, self._base = rank, base
        self._pieces, self._params = plan.target.ranks[rank], served
        self._fixed: Mapping[str, Tensor] | None = None
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
        from rlframe.weights.merging import MergedWeights

        last = self._last if self._last is not None and self._last.version == served else None
        got = transport.fetch(plan, self._rank, version, receipts, last)
        self._last = BaseWeights(version, got.tensors)
        device = next(iter(self._base.values())).device
        merged = MergedWeights(self._pieces, self._params, adapters, device)
        changed = merged.fill(self._base, got.tensors)
        if self._fixed is None:
            self._fixed = self._served_types(merged.keys)
        return FetchedWeights({**changed, **self._fixed}, got.nbytes)

    def _served_types(self, changing: Collection[str]) -> dict[str, Tensor]:
        """What no adapter changes, in the type in which it serves."""
        from rlframe.weights.storage import dtypes

        types = dtypes(self._params)
        kinds = {piece.view.key: types[piece.name] for piece in self._pieces}
        return {k: t.to(kinds[k]) for k, t in self._base.items() if k not in changing}
