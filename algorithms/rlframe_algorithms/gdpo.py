"""GDPO: several rewards, each normalised apart."""

from __future__ import annotations

from dataclasses import dataclass

from rlframe.algorithm import TokenReduction
from rlframe_algorithms.clipped import Clipped
from rlframe_algorithms.policy_gradient import Advantage

__all__ = ["GDPO"]


class GDPO(Clipped):
    """Group reward-decoupled normalisation policy optimisation (2601.05242)::

        A_k  = (R_k - mean R_k) / (std R_k + 1e-6) over the group, for each reward k
        A    = sum_k w_k A_k, then (A - mean) / std over the batch's responses
        loss = GRPO's clipped loss, no KL

    ``reward: [a, b]`` or a reward that returns named parts gives several; their own weights make
    the outcome that is logged and filtered by, ``algo.reward_weights`` the sum above. A reward that
    abstains for a response adds 0 to it. 0 where no reward of the group differs.

    verl: ``adv_estimator=gdpo``, ``gdpo_reward_keys``, ``gdpo_reward_weights``; it normalises over
    tokens, so that long responses count more. TRL: ``multi_objective_aggregation=
    "normalize_then_sum"``.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(Clipped.Config):
        """Options of GDPO."""

        advantage: Advantage = "gdpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        reduction: TokenReduction = "seq-mean-token-mean"
        """token-mean, seq-mean-token-mean, seq-mean-token-sum or fixed-length."""

    config: Config
