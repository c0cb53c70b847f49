"""REINFORCE, and the methods that differ from it by their baseline alone."""

from __future__ import annotations

from dataclasses import dataclass

from rlframe.algorithm import TokenReduction
from rlframe_algorithms.policy_gradient import Advantage, PolicyGradient

__all__ = ["GPG", "OPO", "REINFORCE", "RLOO", "ReMax"]


class REINFORCE(PolicyGradient):
    """Williams (1992): ``loss = 1/B sum_i -R_i log pi(o_i)``, log pi summed over tokens.

    No baseline; ``advantage=batch`` normalises rewards over the batch. verl has no such estimator;
    its ``reinforce`` loss is this one under rollout correction. TRL has none.
    """

    @dataclass(frozen=True)
    class Config(PolicyGradient.Config):
        """Options of REINFORCE."""

        reduction: TokenReduction = "seq-mean-token-sum"
        """token-mean, seq-mean-token-mean, seq-mean-token-sum or fixed-length."""

    config: Config


class RLOO(REINFORCE):
    """REINFORCE leave-one-out (2402.14740)::

        A_i  = R_i - mean of the others = G / (G - 1) (R_i - mean R)
        R_i  = reward - 0.03 sum_t (log pi - log ref);   loss = 1/B sum_i -A_i log pi(o_i)

    The paper's 4 samples a prompt and its KL in the reward, summed over the response.

    verl: ``adv_estimator=rloo`` with PPO's clipped loss and token-mean. TRL: ``RLOOTrainer`` clips
    the ratio of whole responses, ``beta=0.05``. Both are the same gradient in the first step.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(REINFORCE.Config):
        """Options of RLOO."""

        samples_per_prompt: int = 4
        """Responses drawn for each prompt, at least 2."""
        advantage: Advantage = "rloo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        kl_reward_coef: float = 0.03
        """Weight of the KL in the reward, at least 0; 0 is off. The first one under kl_target."""

    config: Config


class ReMax(REINFORCE):
    """ReMax (2310.10505): the greedy response of the same prompt gives the baseline::

        A = R(o) - R(greedy);   R = reward - 0.05 sum_t (log pi - log ref)
        loss = 1/B sum_i -A_i log pi(o_i)

    One sample a prompt, and one at temperature 0 that is never trained on. A prompt whose greedy
    response has no reward teaches nothing.

    verl: ``adv_estimator=remax`` with PPO's clipped loss and token-mean. TRL has none.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(REINFORCE.Config):
        """Options of ReMax."""

        samples_per_prompt: int = 1
        """Responses drawn for each prompt beside the greedy one, at least 1."""
        advantage: Advantage = "remax"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        kl_reward_coef: float = 0.05
        """Weight of the KL in the reward, at least 0; 0 is off. The first one under kl_target."""

    config: Config


class OPO(REINFORCE):
    """On-policy RL with the optimal baseline (2505.23585)::

        A_i  = R_i - sum_j |o_j| R_j / sum_j |o_j|;   loss = 1/B sum_i -A_i log pi(o_i)

    Strictly on-policy, as the paper: one optimiser step a batch; more is refused. No KL, no
    entropy bonus. verl: ``adv_estimator=opo`` with PPO's loss and token-mean; TRL has none.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(REINFORCE.Config):
        """Options of OPO."""

        advantage: Advantage = "opo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            if self.epochs != 1 or self.minibatch_prompts != 0:
                raise ValueError(
                    "epochs must be 1 and minibatch_prompts 0 for opo: its baseline is optimal "
                    "for the weights that sampled; use --algo grpo algo.advantage=opo for more"
                )

    config: Config


class GPG(PolicyGradient):
    """Group policy gradient (2504.02546)::

        A_i  = alpha (R_i - mean R),  alpha = responses / responses in groups with a signal
        loss = 1 / sum |o_i| * sum_i sum_t -A_i log pi;   no clip, no KL, no std

    verl: ``adv_estimator=gpg policy_loss.loss_mode=gpg``; its alpha counts non-zero rewards, which
    is another number wherever a group mixes 0 and 1. TRL has none.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(PolicyGradient.Config):
        """Options of GPG."""

        advantage: Advantage = "gpg"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""

    config: Config
