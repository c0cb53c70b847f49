"""The transfer protocols that rlframe ships, by name."""

from __future__ import annotations

from rlframe import Component

__all__ = ["PROTOCOLS"]

_TABLE = {
    "ONE_TO_ALL": ("ONE_TO_ALL", "the same to all ranks, a list from all"),
    "ONE_TO_ONE": ("ONE_TO_ONE", "rank 0 alone"),
    "DP_PROTO": ("DP_PROTO", "rows split over all ranks, joined"),
    "DP_METRIC": ("DP_METRIC", "rows split over replicas, a list of one figure each"),
    "3D_PROTO": ("THREE_D_PROTO", "rows split over replicas, joined from their last stages"),
    "3D_PP_ONLY": ("THREE_D_PP_ONLY", "the same to all, a list of pipeline stages"),
    "3D_ALL_MICRO_DP": ("THREE_D_ALL_MICRO_DP", "rows split over generation replicas, joined"),
    "ALL_TO_ALL": ("ALL_TO_ALL", "one value a rank, a list from all"),
}

PROTOCOLS = tuple(
    Component("protocol", name, f"rlframe.calling.protocol:{constant}", summary=summary)
    for name, (constant, summary) in _TABLE.items()
)
