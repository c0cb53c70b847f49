"""The mathematics of the methods: pure functions on tensors, for anyone's algorithm.

Names are imported when they are first used, so that an algorithm's file costs no torch import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "clip_fractions": "rlframe.ops.losses",
    "clipped_surrogate": "rlframe.ops.losses",
    "group_mean_baseline": "rlframe.ops.advantages",
    "group_normalised": "rlframe.ops.advantages",
    "group_stats": "rlframe.ops.advantages",
    "has_signal": "rlframe.ops.advantages",
    "KLController": "rlframe.ops.kl_control",
    "kl_loss": "rlframe.ops.kl",
    "kl_reward": "rlframe.ops.kl",
    "kl_value": "rlframe.ops.kl",
    "leave_one_out": "rlframe.ops.advantages",
    "loss_weights": "rlframe.ops.reductions",
    "masked_mean": "rlframe.ops.masked",
    "masked_var": "rlframe.ops.masked",
    "masked_whiten": "rlframe.ops.masked",
    "pair_rows": "rlframe.ops.pairs",
    "preference_loss": "rlframe.ops.pairs",
}

if TYPE_CHECKING:
    from rlframe.ops.advantages import (
        group_mean_baseline,
        group_normalised,
        group_stats,
        has_signal,
        leave_one_out,
    )
    from rlframe.ops.kl import kl_loss, kl_reward, kl_value
    from rlframe.ops.kl_control import KLController
    from rlframe.ops.losses import clip_fractions, clipped_surrogate
    from rlframe.ops.masked import masked_mean, masked_var, masked_whiten
    from rlframe.ops.pairs import pair_rows, preference_loss
    from rlframe.ops.reductions import loss_weights

__all__ = [
    "KLController",
    "clip_fractions",
    "clipped_surrogate",
    "group_mean_baseline",
    "group_normalised",
    "group_stats",
    "has_signal",
    "kl_loss",
    "kl_reward",
    "kl_value",
    "leave_one_out",
    "loss_weights",
    "masked_mean",
    "masked_var",
    "masked_whiten",
    "pair_rows",
    "preference_loss",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home module at its first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'rlframe.ops' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
