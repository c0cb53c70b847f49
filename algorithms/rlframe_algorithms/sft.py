"""Supervised fine-tuning: the data writes the responses, no rollout engine starts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlframe import Algorithm, RoleSpec, Row, Term
from rlframe.algorithm import Example
from rlframe_algorithms.pairs import written_text

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["SFT"]


class SFT(Algorithm):
    """Negative log-likelihood of written responses, averaged over tokens.

    The mean is over all response tokens of the optimiser step. ``kl_coef`` above 0 keeps the policy
    near the model that it started from. The response is text, or chat messages of which it is the
    last, in the column ``response`` or, as TRL names it, ``completion``.
    """

    @dataclass(frozen=True)
    class Config(Algorithm.Config):
        """Options of SFT."""

        samples_per_prompt: int = 1
        """Always 1: the data writes the response."""
        response_key: str = ""
        """Dataset column that holds the response; empty takes response or (TRL's) completion."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            if self.samples_per_prompt != 1:
                raise ValueError(
                    f"samples_per_prompt must be 1 for sft, not {self.samples_per_prompt}: "
                    "the data writes the response"
                )

    config: Config
    offline: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ()

    def roles(self) -> tuple[RoleSpec, ...]:
        """The policy, whose log-probabilities before the update nobody reads, and its reference."""
        policy, *others = super().roles()
        return (dataclasses.replace(policy, outputs={}), *others)

    def examples(self, row: Row) -> list[Example]:
        """The response of a dataset row. Raises DataError where there is none."""
        key = self.config.response_key
        if not key:
            key = "completion" if _has_completion(row) else "response"
        return [Example(written_text(row, key))]

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """-log pi of each response token: (b, R), nats."""
        return -out.logprobs

    def loss(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """The terms of the base under the name ``nll``."""
        terms = super().loss(role, out, batch)
        return {"nll": terms.pop("pg_loss"), **terms}


def _has_completion(row: Row) -> bool:
    return "response" not in row.columns and "completion" in row.columns
