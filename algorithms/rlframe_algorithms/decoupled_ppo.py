"""Decoupled PPO: data of older weights, a clip around the weights at the start of the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlframe_algorithms.ppo import PPO

__all__ = ["DecoupledPPO"]


class DecoupledPPO(PPO):
    """PPO for asynchronous sampling (2110.00641; AReaL, 2505.24298)::

        loss = -min(pi_prox / pi_behaviour, rollout_cap)
               * min(r A, clip(r, 1 - clip_ratio, 1 + clip_ratio_high) A),  r = pi / pi_prox

    The proximal policy is the one at the start of the update (``old_logprobs``), the behaviour
    policy whichever weights sampled a token (``rollout_logprobs``, which may be of several
    ``policy_version`` in one response). The weight of a token is constant and capped. Advantages
    and critic are PPO's.

    2110.00641 also keeps a moving average of weights as proximal policy; here as in AReaL it is
    the policy before the update. AReaL gives tokens above its cap of 5 no loss at all:
    ``rollout_correction=mask rollout_low=0`` does, and takes them out of the denominator too. verl:
    ``rollout_is`` with ``bypass_mode=false``. TRL has no counterpart with a critic.
    """  # noqa: D415

    @dataclass(frozen=True)
    class Config(PPO.Config):
        """Options of decoupled PPO."""

        rollout_correction: Literal["off", "truncate", "mask", "bypass"] = "truncate"
        """truncate: the loss times min(w, cap); mask: the loss times w, out of [low, high] left
        out."""
        rollout_cap: float = 5.0
        """Cap of truncate, above 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            if not self.weighs:
                raise ValueError(
                    "rollout_correction must be truncate or mask for decoupled PPO, not "
                    f"{self.rollout_correction}: without the weights it is ppo"
                )

    config: Config
