"""What this package offers. Nothing of it is imported before it is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from rlframe import Component, hookimpl

RLFRAME_API_VERSION = 1


@hookimpl
def rlframe_components() -> Sequence[Component]:
    """An engine, a scheduler."""
    return (
        Component(
            "rollout",
            "afresh",
            "rlframe_afresh.engine:Afresh",
            summary="computes the whole text anew for every token",
        ),
        Component(
            "scheduler",
            "bursts",
            "rlframe_afresh.scheduler:Bursts",
            summary="generates for several steps, then takes them",
        ),
    )
