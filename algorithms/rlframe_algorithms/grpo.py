"""GRPO: advantages from the samples of one prompt, no critic."""

from __future__ import annotations

from dataclasses import dataclass

from rlframe.algorithm import TokenReduction
from rlframe_algorithms.clipped import Clipped
from rlframe_algorithms.policy_gradient import Advantage

__all__ = ["GRPO", "DrGRPO"]


class GRPO(Clipped):
    """Group-relative policy optimisation (DeepSeekMath, 2402.03300) with a KL loss to a reference::

        A_i  = (R_i - mean R) / (std R + 1e-6) over the G responses of a prompt, std over n - 1
        loss = 1/B sum_i 1/|o_i| sum_t [ -min(r A_i, clip(r, 1 - 0.2, 1 + 0.2) A_i) + 0.04 KL_t ]

    Defaults are the paper's, with these differences: 8 samples a prompt where the paper draws 64,
    and the KL loss has the paper's value (k3) with the gradient of KL(pi || ref); the paper's own
    loss is ``kl_estimator=k3``. A is exactly 0 where all rewards of a group are equal, and for a
    group of one; a response without a sampled token is in no statistics.

    verl: ``adv_estimator=grpo``; it reduces by ``token-mean`` by default where the paper's equation
    3 is ``seq-mean-token-mean``, has the KL loss off, its dual clip at 3, counts an empty response
    in its group, and gives a group of one its bare reward. TRL: ``loss_type="dapo"`` and
    ``beta=0`` by default, and 1e-4 beside the std.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(Clipped.Config):
        """Options of GRPO."""

        advantage: Advantage = "grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        reduction: TokenReduction = "seq-mean-token-mean"
        """token-mean, seq-mean-token-mean, seq-mean-token-sum or fixed-length (Dr. GRPO)."""
        kl_coef: float = 0.04
        """Weight of the KL loss to the reference, at least 0; 0 starts no reference."""

    config: Config


class DrGRPO(Clipped):
    """GRPO done right (2503.20783): neither the std nor the length in a denominator::

        A_i  = R_i - mean R;   loss = 1 / (B L) sum_i sum_t -min(r A_i, clip(r, 0.8, 1.2) A_i)

    L is the constant ``rollout.max_new_tokens``, not the width of the batch. No KL.

    verl: ``norm_adv_by_std_in_grpo=false loss_agg_mode=seq-mean-token-sum-norm``, whose constant is
    the padded width unless ``loss_scale_factor`` is set. TRL: ``loss_type="dr_grpo"
    scale_rewards="none"``.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(Clipped.Config):
        """Options of Dr. GRPO."""

        advantage: Advantage = "dr-grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        reduction: TokenReduction = "fixed-length"
        """token-mean, seq-mean-token-mean, seq-mean-token-sum or fixed-length (Dr. GRPO)."""

    config: Config
