"""Direct preference optimisation: the policy is its own reward model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe import RoleSpec, Term, ops
from rlframe.config import check_range
from rlframe_algorithms.pairs import PairMethod, mean_of_pairs

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["DPO"]


class DPO(PairMethod):
    """Direct preference optimisation (2305.18290, eq. 7), averaged over the pairs of a step.

    With the implicit reward ``r = beta * sum over tokens of (log pi - log ref)`` the loss is
    ``-log sigmoid(r_chosen - r_rejected)``; ``label_smoothing`` e assumes that a share e of the
    preferences is the wrong way round (conservative DPO):
    ``-(1 - e) log sigmoid(m) - e log sigmoid(-m)``. The reference is the model at the start.

    Defaults are the paper's and TRL's (``loss_type=sigmoid``); TRL averages over each device's
    pairs and then over devices, here it is the mean over all. verl ships no DPO.
    """

    @dataclass(frozen=True)
    class Config(PairMethod.Config):
        """Options of DPO."""

        beta: float = 0.1
        """Strength of the pull to the reference, above 0."""
        label_smoothing: float = 0.0
        """Share of preferences that are taken to be the wrong way round, 0 to below 0.5."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "beta", above=0)
            check_range(self, "label_smoothing", 0, below=0.5)

    config: Config

    def roles(self) -> tuple[RoleSpec, ...]:
        """Policy and reference."""
        reference = RoleSpec("reference", outputs={"logprobs": "ref_logprobs"}, init_from="policy")
        return (RoleSpec("policy", trained=True), reference)

    def loss(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """``dpo_loss``, one value a pair."""
        chosen, rejected = self._rewards(out, batch)
        loss = ops.preference_loss(chosen - rejected, self.config.label_smoothing)
        return {"dpo_loss": mean_of_pairs(loss)}

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """Share of pairs that are ranked right, both mean implicit rewards, their difference."""
        chosen, rejected = self._rewards(out, batch)
        return {
            "accuracy": mean_of_pairs((chosen > rejected).to(chosen.dtype)),
            "chosen_reward": mean_of_pairs(chosen),
            "rejected_reward": mean_of_pairs(rejected),
            "reward_margin": mean_of_pairs(chosen - rejected),
        }

    def _rewards(self, out: Output, batch: TensorDict) -> tuple[Tensor, Tensor]:
        """Implicit rewards of the better and the worse responses, (n,) each.

        Masked slots hold 0 in both log-probabilities, so that they add nothing.
        """
        better, worse = ops.pair_rows(batch["group_ids"], batch["chosen"])
        rewards = self.config.beta * (out.logprobs - batch["ref_logprobs"]).sum(1)
        return rewards[better], rewards[worse]
