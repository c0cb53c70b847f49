"""The environments that rlframe ships."""

from __future__ import annotations

from rlframe import Component

__all__ = ["ENVIRONMENTS"]

ENVIRONMENTS = (
    Component(
        "environment",
        "single-turn",
        "rlframe_plugins.envs.single_turn:SingleTurn",
        summary="one prompt, one response",
    ),
)
