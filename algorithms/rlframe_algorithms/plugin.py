"""The methods that rlframe ships."""

from __future__ import annotations

from collections.abc import Sequence

from rlframe import Component, hookimpl

RLFRAME_API_VERSION = 1

_METHODS = (
    ("grpo", "grpo:GRPO", "group-relative policy optimisation (2402.03300)"),
    ("dr-grpo", "grpo:DrGRPO", "GRPO without std and length in a denominator (2503.20783)"),
    ("dapo", "dapo:DAPO", "decoupled clip and dynamic sampling (2503.14476)"),
    ("gspo", "gspo:GSPO", "one ratio a response, clipped (2507.18071)"),
    ("cispo", "cispo:CISPO", "clipped weights, no token without gradient (2506.13585)"),
    ("sapo", "sapo:SAPO", "a soft gate in place of the clip (2511.20347)"),
    ("gmpo", "gmpo:GMPO", "geometric mean of clipped ratios (2507.20673)"),
    ("gdpo", "gdpo:GDPO", "several rewards, each normalised apart (2601.05242)"),
    ("dppo", "dppo:DPPO", "trust region by TV or KL of the sampled token (2602.04879)"),
    ("topr", "topr:TOPR", "tapered off-policy REINFORCE (2503.14286)"),
    ("reinforce", "reinforce:REINFORCE", "the plain policy gradient (Williams 1992)"),
    ("rloo", "reinforce:RLOO", "REINFORCE with the others' mean as baseline (2402.14740)"),
    ("remax", "reinforce:ReMax", "REINFORCE with the greedy response as baseline (2310.10505)"),
    ("opo", "reinforce:OPO", "REINFORCE with the optimal baseline, on-policy (2505.23585)"),
    ("gpg", "reinforce:GPG", "group policy gradient (2504.02546)"),
    (
        "reinforce++",
        "reinforce_plus_plus:REINFORCEPlusPlus",
        "batch-normalised returns of tokens (2501.03262)",
    ),
    (
        "reinforce++-baseline",
        "reinforce_plus_plus:REINFORCEPlusPlusBaseline",
        "REINFORCE++ with the group's mean as baseline (2501.03262)",
    ),
    ("sft", "sft:SFT", "supervised fine-tuning on responses that the data writes"),
    ("ppo", "ppo:PPO", "proximal policy optimisation (1707.06347) with GAE and a critic"),
    ("vapo", "vapo:VAPO", "PPO with length-adaptive GAE and a pre-trained critic (2504.05118)"),
    (
        "decoupled-ppo",
        "decoupled_ppo:DecoupledPPO",
        "PPO on data of older weights (2110.00641, 2505.24298)",
    ),
    (
        "clip-cov",
        "clip_cov:ClipCov",
        "GRPO without gradient at some tokens of high covariance (2505.22617)",
    ),
    (
        "kl-cov",
        "kl_cov:KLCov",
        "GRPO with a KL penalty at the tokens of highest covariance (2505.22617)",
    ),
    ("safe-rlhf", "safe_rlhf:SafeRLHF", "PPO under a limit on the mean cost (2310.12773)"),
    ("rm", "rm:RewardModel", "reward model from preference pairs (Bradley-Terry)"),
    (
        "cost-model",
        "cost_model:CostModel",
        "cost model from pairs and safe or unsafe labels (2310.12773)",
    ),
    ("dpo", "dpo:DPO", "direct preference optimisation (2305.18290)"),
    ("distill", "distill:Distill", "on-policy distillation from a teacher (2306.13649)"),
)
"""Name, where the class is in this package, and what it is."""


@hookimpl
def rlframe_components() -> Sequence[Component]:
    """Offer the algorithms."""
    return tuple(
        Component("algorithm", name, f"rlframe_algorithms.{place}", summary=summary)
        for name, place, summary in _METHODS
    )
