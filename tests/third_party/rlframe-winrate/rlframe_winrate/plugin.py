"""What this package offers. Nothing of it is imported before it is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from rlframe import Component, hookimpl

RLFRAME_API_VERSION = 1


@hookimpl
def rlframe_components() -> Sequence[Component]:
    """A method, a reward, an environment."""
    return (
        Component(
            "algorithm",
            "win-rate",
            "rlframe_winrate.method:WinRate",
            summary="advantage by how many of its group a response beats",
        ),
        Component(
            "reward",
            "near",
            "rlframe_winrate.reward:Near",
            summary="1 for the right number, less the further off",
        ),
        Component(
            "environment",
            "warmer",
            "rlframe_winrate.environment:Warmer",
            summary="says higher or lower after a wrong number",
        ),
    )
