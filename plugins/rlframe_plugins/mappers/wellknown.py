"""Dataflows of well-known methods, for planning with ones that are not installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlframe import RoleSpec

__all__ = ["WELL_KNOWN", "Dataflow"]


@dataclass(frozen=True)
class Dataflow:
    """Roles of a method, samples a prompt, and samples that are generated but not learned from."""

    roles: tuple[RoleSpec, ...]
    samples: int = 1
    extra: int = 0


_POLICY = RoleSpec("policy", trained=True, outputs={"logprobs": "old_logprobs"})
_REFERENCE = RoleSpec("reference", outputs={"logprobs": "ref_logprobs"}, init_from="policy")


def _critic(name: str, column: str) -> RoleSpec:
    return RoleSpec(name, "value", True, {"values": column}, ("values",))


def _scorer(name: str, column: str) -> RoleSpec:
    return RoleSpec(name, "score", False, {"scores": column}, ("scores",))


_CRITIC, _REWARD = _critic("critic", "values"), _scorer("reward", "scores")

WELL_KNOWN: Mapping[str, Dataflow] = {
    "grpo": Dataflow((_POLICY, _REFERENCE), samples=8),
    "ppo": Dataflow((_POLICY, _CRITIC, _REFERENCE, _REWARD)),
    "remax": Dataflow((_POLICY, _REFERENCE, _REWARD), extra=1),
    "safe-rlhf": Dataflow(
        (
            _POLICY,
            _CRITIC,
            _critic("cost_critic", "cost_values"),
            _REFERENCE,
            _REWARD,
            _scorer("cost", "costs"),
        )
    ),
}
