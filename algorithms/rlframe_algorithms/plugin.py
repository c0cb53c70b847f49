"""The methods that rlframe ships."""

from __future__ import annotations

from collections.abc import Sequence

from rlframe import Component, hookimpl

RLFRAME_API_VERSION = 1

_METHODS = (
    Component(
        "algorithm",
        "grpo",
        "rlframe_algorithms.grpo:GRPO",
        summary="group-relative policy optimisation (2402.03300)",
    ),
    Component(
        "algorithm",
        "dr-grpo",
        "rlframe_algorithms.grpo:DrGRPO",
        summary="GRPO without std and length in a denominator (2503.20783)",
    ),
    Component(
        "algorithm",
        "dapo",
        "rlframe_algorithms.dapo:DAPO",
        summary="decoupled clip and dynamic sampling (2503.14476)",
    ),
    Component(
        "algorithm",
        "gspo",
        "rlframe_algorithms.gspo:GSPO",
        summary="one ratio a response, clipped (2507.18071)",
    ),
    Component(
        "algorithm",
        "cispo",
        "rlframe_algorithms.cispo:CISPO",
        summary="clipped weights, no token without gradient (2506.13585)",
    ),
    Component(
        "algorithm",
        "sapo",
        "rlframe_algorithms.sapo:SAPO",
        summary="a soft gate in place of the clip (2511.20347)",
    ),
    Component(
        "algorithm",
        "gmpo",
        "rlframe_algorithms.gmpo:GMPO",
        summary="geometric mean of clipped ratios (2507.20673)",
    ),
    Component(
        "algorithm",
        "gdpo",
        "rlframe_algorithms.gdpo:GDPO",
        summary="several rewards, each normalised apart (2601.05242)",
    ),
    Component(
        "algorithm",
        "dppo",
        "rlframe_algorithms.dppo:DPPO",
        summary="trust region by TV or KL of the sampled token (2602.04879)",
    ),
    Component(
        "algorithm",
        "topr",
        "rlframe_algorithms.topr:TOPR",
        summary="tapered off-policy REINFORCE (2503.14286)",
    ),
    Component(
        "algorithm",
        "reinforce",
        "rlframe_algorithms.reinforce:REINFORCE",
        summary="the plain policy gradient (Williams 1992)",
    ),
    Component(
        "algorithm",
        "rloo",
        "rlframe_algorithms.reinforce:RLOO",
        summary="REINFORCE with the others' mean as baseline (2402.14740)",
    ),
    Component(
        "algorithm",
        "remax",
        "rlframe_algorithms.reinforce:ReMax",
        summary="REINFORCE with the greedy response as baseline (2310.10505)",
    ),
    Component(
        "algorithm",
        "opo",
        "rlframe_algorithms.reinforce:OPO",
        summary="REINFORCE with the optimal baseline, on-policy (2505.23585)",
    ),
    Component(
        "algorithm",
        "gpg",
        "rlframe_algorithms.reinforce:GPG",
        summary="group policy gradient (2504.02546)",
    ),
    Component(
        "algorithm",
        "reinforce++",
        "rlframe_algorithms.reinforce_plus_plus:REINFORCEPlusPlus",
        summary="batch-normalised returns of tokens (2501.03262)",
    ),
    Component(
        "algorithm",
        "reinforce++-baseline",
        "rlframe_algorithms.reinforce_plus_plus:REINFORCEPlusPlusBaseline",
        summary="REINFORCE++ with the group's mean as baseline (2501.03262)",
    ),
    Component(
        "algorithm",
        "sft",
        "rlframe_algorithms.sft:SFT",
        summary="supervised fine-tuning on responses that the data writes",
    ),
    Component(
        "algorithm",
        "ppo",
        "rlframe_algorithms.ppo:PPO",
        summary="proximal policy optimisation (1707.06347) with GAE and a critic",
    ),
    Component(
        "algorithm",
        "vapo",
        "rlframe_algorithms.vapo:VAPO",
        summary="PPO with length-adaptive GAE and a pre-trained critic (2504.05118)",
    ),
    Component(
        "algorithm",
        "decoupled-ppo",
        "rlframe_algorithms.decoupled_ppo:DecoupledPPO",
        summary="PPO on data of older weights (2110.00641, 2505.24298)",
    ),
    Component(
        "algorithm",
        "clip-cov",
        "rlframe_algorithms.clip_cov:ClipCov",
        summary="GRPO without gradient at some tokens of high covariance (2505.22617)",
    ),
    Component(
        "algorithm",
        "kl-cov",
        "rlframe_algorithms.kl_cov:KLCov",
        summary="GRPO with a KL penalty at the tokens of highest covariance (2505.22617)",
    ),
    Component(
        "algorithm",
        "safe-rlhf",
        "rlframe_algorithms.safe_rlhf:SafeRLHF",
        summary="PPO under a limit on the mean cost (2310.12773)",
    ),
    Component(
        "algorithm",
        "rm",
        "rlframe_algorithms.rm:RewardModel",
        summary="reward model from preference pairs (Bradley-Terry)",
    ),
    Component(
        "algorithm",
        "cost-model",
        "rlframe_algorithms.cost_model:CostModel",
        summary="cost model from pairs and safe or unsafe labels (2310.12773)",
    ),
    Component(
        "algorithm",
        "dpo",
        "rlframe_algorithms.dpo:DPO",
        summary="direct preference optimisation (2305.18290)",
    ),
    Component(
        "algorithm",
        "distill",
        "rlframe_algorithms.distill:Distill",
        summary="on-policy distillation from a teacher (2306.13649)",
    ),
)


@hookimpl
def rlframe_components() -> Sequence[Component]:
    """Offer the algorithms."""
    return _METHODS
