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
    )
