"""The mathematics of the methods: pure functions on tensors, for anyone's algorithm.

Names are imported when they are first used, so that an algorithm's file costs no torch import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "absolute_kl": "rlframe.ops.covariance",
    "batch_normalised": "rlframe.ops.advantages",
    "best_of_group": "rlframe.ops.advantages",
    "clip_fractions": "rlframe.ops.losses",
    "clipped_surrogate": "rlframe.ops.losses",
    "clipped_value_loss": "rlframe.ops.values",
    "decoupled_normalised": "rlframe.ops.advantages",
    "divergence_masked": "rlframe.ops.token_losses",
    "divergence_outside": "rlframe.ops.token_losses",
    "draw_tokens": "rlframe.ops.covariance",
    "episode_most": "rlframe.ops.groups",
    "episode_sums": "rlframe.ops.groups",
    "explained_variance": "rlframe.ops.temporal",
    "gae": "rlframe.ops.temporal",
    "geometric_clipped": "rlframe.ops.sequence_losses",
    "geometric_outside": "rlframe.ops.sequence_losses",
    "greedy_baseline": "rlframe.ops.advantages",
    "group_mean_baseline": "rlframe.ops.advantages",
    "group_normalised": "rlframe.ops.advantages",
    "group_share": "rlframe.ops.advantages",
    "group_stats": "rlframe.ops.groups",
    "has_signal": "rlframe.ops.groups",
    "kl_loss": "rlframe.ops.kl",
    "kl_reward": "rlframe.ops.kl",
    "kl_value": "rlframe.ops.kl",
    "KLController": "rlframe.ops.kl_control",
    "leave_one_out": "rlframe.ops.advantages",
    "length_weighted_baseline": "rlframe.ops.advantages",
    "log_ratio": "rlframe.ops.ratios",
    "loss_weights": "rlframe.ops.reductions",
    "masked_mean": "rlframe.ops.masked",
    "masked_var": "rlframe.ops.masked",
    "masked_whiten": "rlframe.ops.masked",
    "mean_scaled": "rlframe.ops.advantages",
    "outcome_advantages": "rlframe.ops.advantages",
    "outcome_rewards": "rlframe.ops.temporal",
    "overlong_penalty": "rlframe.ops.overlong",
    "pair_rows": "rlframe.ops.pairs",
    "plain_reward": "rlframe.ops.advantages",
    "policy_gradient": "rlframe.ops.token_losses",
    "preference_loss": "rlframe.ops.pairs",
    "reward_to_go": "rlframe.ops.returns",
    "rollout_inside": "rlframe.ops.correction",
    "rollout_log_weight": "rlframe.ops.correction",
    "rollout_weight": "rlframe.ops.correction",
    "sequence_clipped": "rlframe.ops.sequence_losses",
    "sequence_log_ratio": "rlframe.ops.ratios",
    "share_of_tokens": "rlframe.ops.covariance",
    "soft_gated": "rlframe.ops.token_losses",
    "tapered": "rlframe.ops.sequence_losses",
    "token_covariance": "rlframe.ops.covariance",
    "token_keys": "rlframe.ops.covariance",
    "top_tokens": "rlframe.ops.covariance",
    "value_clip_fraction": "rlframe.ops.values",
    "weight_clipped": "rlframe.ops.token_losses",
}

if TYPE_CHECKING:
    from rlframe.ops.advantages import (
        batch_normalised,
        best_of_group,
        decoupled_normalised,
        greedy_baseline,
        group_mean_baseline,
        group_normalised,
        group_share,
        leave_one_out,
        length_weighted_baseline,
        mean_scaled,
        outcome_advantages,
        plain_reward,
    )
    from rlframe.ops.correction import rollout_inside, rollout_log_weight, rollout_weight
    from rlframe.ops.covariance import (
        absolute_kl,
        draw_tokens,
        share_of_tokens,
        token_covariance,
        token_keys,
        top_tokens,
    )
    from rlframe.ops.groups import episode_most, episode_sums, group_stats, has_signal
    from rlframe.ops.kl import kl_loss, kl_reward, kl_value
    from rlframe.ops.kl_control import KLController
    from rlframe.ops.losses import clip_fractions, clipped_surrogate
    from rlframe.ops.masked import masked_mean, masked_var, masked_whiten
    from rlframe.ops.overlong import overlong_penalty
    from rlframe.ops.pairs import pair_rows, preference_loss
    from rlframe.ops.ratios import log_ratio, sequence_log_ratio
    from rlframe.ops.reductions import loss_weights
    from rlframe.ops.returns import reward_to_go
    from rlframe.ops.sequence_losses import (
        geometric_clipped,
        geometric_outside,
        sequence_clipped,
        tapered,
    )
    from rlframe.ops.temporal import explained_variance, gae, outcome_rewards
    from rlframe.ops.token_losses import (
        divergence_masked,
        divergence_outside,
        policy_gradient,
        soft_gated,
        weight_clipped,
    )
    from rlframe.ops.values import clipped_value_loss, value_clip_fraction

__all__ = [
    "KLController",
    "absolute_kl",
    "batch_normalised",
    "best_of_group",
    "clip_fractions",
    "clipped_surrogate",
    "clipped_value_loss",
    "decoupled_normalised",
    "divergence_masked",
    "divergence_outside",
    "draw_tokens",
    "episode_most",
    "episode_sums",
    "explained_variance",
    "gae",
    "geometric_clipped",
    "geometric_outside",
    "greedy_baseline",
    "group_mean_baseline",
    "group_normalised",
    "group_share",
    "group_stats",
    "has_signal",
    "kl_loss",
    "kl_reward",
    "kl_value",
    "leave_one_out",
    "length_weighted_baseline",
    "log_ratio",
    "loss_weights",
    "masked_mean",
    "masked_var",
    "masked_whiten",
    "mean_scaled",
    "outcome_advantages",
    "outcome_rewards",
    "overlong_penalty",
    "pair_rows",
    "plain_reward",
    "policy_gradient",
    "preference_loss",
    "reward_to_go",
    "rollout_inside",
    "rollout_log_weight",
    "rollout_weight",
    "sequence_clipped",
    "sequence_log_ratio",
    "share_of_tokens",
    "soft_gated",
    "tapered",
    "token_covariance",
    "token_keys",
    "top_tokens",
    "value_clip_fraction",
    "weight_clipped",
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
