"""The methods that rlframe ships."""

from __future__ import annotations

from collections.abc import Sequence

from rlframe import Component, hookimpl

RLFRAME_API_VERSION = 1


@hookimpl
def rlframe_components() -> Sequence[Component]:
    """Offer the algorithms."""
    return (
        Component(
            "algorithm",
            "grpo",
            "rlframe_algorithms.grpo:GRPO",
            summary="group-relative policy optimisation (2402.03300), with Dr. GRPO's options",
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
