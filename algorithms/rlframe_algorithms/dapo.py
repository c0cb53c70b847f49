"""DAPO: decoupled clip and dynamic sampling."""

from __future__ import annotations

from dataclasses import dataclass

from rlframe_algorithms.clipped import Clipped
from rlframe_algorithms.policy_gradient import Advantage

__all__ = ["DAPO"]


class DAPO(Clipped):
    """Decoupled clip and dynamic sampling policy optimisation (2503.14476)::

        A_i  = (R_i + overlong_i - mean) / std over the group, as in GRPO
        loss = 1 / sum |o_i| * sum_i sum_t -min(r A_i, clip(r, 1 - 0.2, 1 + 0.28) A_i)
        overlong_i = 0 up to L_max - L_c tokens, then linear to -1 at L_max

    Groups whose rewards are all equal are dropped and further prompts drawn until the batch is
    full; the filter looks at the reward before the penalty, and accepted groups beyond a step's
    prompts wait for the next one. ``data.max_refills`` bounds the draws, with an error that says
    what to change. No KL. L_max is ``rollout.max_new_tokens`` and L_c the paper's share of it, 4096
    of 20480 tokens; lengths count sampled tokens, so a tool's output is not overlong. L_max ends
    a turn, so an episode of several turns has the penalty of its longest one.
    ``mask_truncated=true`` is the paper's overlong filtering.

    verl: ``algorithm.filter_groups``, ``clip_ratio_high=0.28``, ``overlong_buffer_cfg`` in tokens;
    its synchronous trainer throws the surplus of a refill away, and its dual clip is on. TRL:
    ``loss_type="dapo" epsilon_high=0.28``, ``get_soft_overlong_punishment`` as a reward; it draws
    no further prompts.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(Clipped.Config):
        """Options of DAPO."""

        advantage: Advantage = "grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        clip_ratio_high: float | None = 0.28
        """How far the ratio may rise above 1, above 0; None takes clip_ratio."""
        drop_equal_groups: bool = True
        """Draw further prompts for groups whose rewards are all equal (dynamic sampling)."""
        overlong_buffer: float = 0.2
        """Last share of the allowed tokens in which the penalty grows, 0 to 1; 0 is off."""

    config: Config
