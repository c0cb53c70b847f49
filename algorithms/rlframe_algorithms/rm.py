"""Reward models from preferences: a score a response, Bradley-Terry between the two of a pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlframe import Column, DataError, RoleSpec, Row, Term, ops
from rlframe.config import check_range
from rlframe_algorithms.pairs import PairMethod, mean_of_pairs

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlframe.algorithm import Output

__all__ = ["RewardModel"]


class RewardModel(PairMethod):
    """Trains a score model so that the better response of a pair gets the higher score.

    ``-log sigmoid(s_chosen - s_rejected - margin)`` (Bradley-Terry; InstructGPT, 2203.02155, eq. 1;
    the margin is Llama 2's, 2307.09288, eq. 2), averaged over the pairs of the optimiser step. The
    model is the language model with a new head that starts at zero, read at a response's last
    token; ``rlframe export`` writes it for ``AutoModelForSequenceClassification``.

    As in TRL a ``margin`` is read from the data and ``centre_coef`` is TRL's
    ``center_rewards_coefficient``. TRL averages over the pairs of each device and then over
    devices; here it is the mean over all. verl ships no reward-model training.
    """

    @dataclass(frozen=True)
    class Config(PairMethod.Config):
        """Options of reward-model training."""

        margin_key: str = ""
        """Dataset column with the score difference that a pair must have; empty is 0 for all."""
        centre_coef: float = 0.0
        """Weight of (s_chosen + s_rejected)^2, which keeps scores near 0 (2312.09244); at least
        0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "centre_coef", 0)

    config: Config
    columns: ClassVar[tuple[Column, ...]] = (
        *PairMethod.columns,
        Column("margin", "B", "float32", "data", "score difference that a pair must have"),
    )

    def roles(self) -> tuple[RoleSpec, ...]:
        """The score model alone, under the name of the model that is trained."""
        return (RoleSpec("policy", model="score", trained=True, computes=("scores",)),)

    def row_columns(self, row: Row, better: bool) -> Mapping[str, Any]:
        """The margin of the row's pair, where one is asked for."""
        key = self.config.margin_key
        if not key:
            return {}
        value = row.columns.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"{row.source}: column '{key}' is {value!r}, not a margin")
        return {"margin": float(value)}

    def loss(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """``rm_loss`` and, where asked for, ``centre_loss``: one value a pair."""
        better, worse = ops.pair_rows(batch["group_ids"], batch["chosen"])
        margins = out.scores[better] - out.scores[worse]
        if self.config.margin_key:
            margins = margins - batch["margin"][better]
        terms = {"rm_loss": mean_of_pairs(ops.preference_loss(margins))}
        if self.config.centre_coef:
            centre = (out.scores[better] + out.scores[worse]).square()
            terms["centre_loss"] = mean_of_pairs(centre, self.config.centre_coef)
        return terms

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """Share of pairs that are ranked right, and both mean scores."""
        better, worse = ops.pair_rows(batch["group_ids"], batch["chosen"])
        chosen, rejected = out.scores[better], out.scores[worse]
        return {
            "accuracy": mean_of_pairs((chosen > rejected).to(chosen.dtype)),
            "chosen_score": mean_of_pairs(chosen),
            "rejected_score": mean_of_pairs(rejected),
        }
