"""Advantages that know no scale: the share of its group that a response beats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlframe import Algorithm, ops
from rlframe.config import check_range

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe import Batch
    from rlframe.algorithm import Output

__all__ = ["WinRate"]


class WinRate(Algorithm):
    """Wins less losses against the others of the group, in [-1, 1], and PPO's clipped loss.

    Any increasing function of the reward gives the same advantages.
    """

    @dataclass(frozen=True)
    class Config(Algorithm.Config):
        """Options of the method."""

        clip_ratio: float = 0.2
        """How far the ratio pi / pi_old may move from 1, above 0 and at most 1."""
        margin: float = 1e-6
        """Difference of two rewards that is still a draw, at least 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "clip_ratio", above=0, high=1)
            check_range(self, "margin", 0)

    config: Config
    capabilities: ClassVar[frozenset[str]] = frozenset({"group-relative"})

    def advantages(self, batch: Batch) -> Mapping[str, Tensor]:
        """(B,); memory for all pairs of rows of the batch."""
        valid = batch["train"] & (batch["response_tokens"] > 0)
        stats = ops.group_stats(batch["rewards"], batch["group_ids"], valid, batch["episode_ids"])
        ahead = stats.rewards[:, None] - stats.rewards[None, :]
        rivals = (stats.group[:, None] == stats.group[None, :]) & stats.counted[None, :]
        wins = ((ahead > self.config.margin) & rivals).sum(1).double()
        losses = ((ahead < -self.config.margin) & rivals).sum(1).double()
        others = (stats.count - 1).clamp(min=1)
        return {"advantages": stats.advantage((wins - losses) / others)}

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """(b, R), neither masked nor reduced."""
        return ops.clipped_surrogate(
            out.logprobs, batch["old_logprobs"], batch["advantages"], self.config.clip_ratio
        )
