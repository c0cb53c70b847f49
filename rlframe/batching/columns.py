"""The columns of a batch: one name, one shape, one dtype each.

**B** rows, **P** longest prompt, **R** longest response, **S** = P + R, **K** a fixed width that
the writer chooses. A component that needs a further column declares a :class:`Column` of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["COLUMNS", "Column", "Schema", "make_schema"]

Dtype = Literal["int64", "int32", "bool", "float32", "object"]


@dataclass(frozen=True)
class Column:
    """One column: ``shape`` is a string of axes ("B", "BR", "BP", "BK", "BRK")."""

    name: str
    shape: str
    dtype: Dtype
    writer: str
    meaning: str

    @property
    def axis(self) -> str | None:
        """The ragged axis ("P", "R" or "S"), or None when every row has the same size."""
        return self.shape[1] if len(self.shape) > 1 and self.shape[1] in "PRS" else None


Schema = Mapping[str, Column]

_TABLE = (
    Column("prompt_ids", "BP", "int64", "data", "prompt tokens; left-padded in the padded view"),
    Column(
        "group_ids", "B", "int64", "collector", "one id per draw of a prompt, unique in the run"
    ),
    Column("episode_ids", "B", "int64", "collector", "one id per episode; an episode may be rows"),
    Column(
        "train", "B", "bool", "collector", "False for rows that are looked at, never trained on"
    ),
    Column(
        "response_ids", "BR", "int64", "rollout", "response tokens, tools' and environments' too"
    ),
    Column("response_mask", "BR", "bool", "rollout", "tokens sampled by the policy"),
    Column(
        "response_tokens", "B", "int64", "collector", "tokens of the row that the policy sampled"
    ),
    Column("turn_tokens", "B", "int64", "collector", "sampled tokens of the row's longest turn"),
    Column("response_limit", "B", "int64", "collector", "tokens that a turn was allowed at most"),
    Column("rollout_logprobs", "BR", "float32", "rollout", "nats, under the sampled distribution"),
    Column("policy_version", "BR", "int32", "rollout", "weights that sampled each token; -1: none"),
    Column("turn_ids", "BR", "int32", "collector", "which turn a response token belongs to"),
    Column("finish_reason", "B", "object", "collector", "stop, length, abort or error"),
    Column("prompt_text", "B", "object", "data", "the prompt as it is written: text or messages"),
    Column("response_text", "B", "object", "collector", "the response of the episode, decoded"),
    Column("rewards", "B", "float32", "rewards", "outcome: weighted sum of the parts"),
    Column(
        "reward_parts", "BK", "float32", "rewards", "one column a reward; NaN where it abstained"
    ),
    Column("token_rewards", "BR", "float32", "rewards", "per token, beside the outcome"),
    Column("old_logprobs", "BR", "float32", "policy", "nats, before the first update on the batch"),
    Column("ref_logprobs", "BR", "float32", "reference", "nats, under the reference policy"),
    Column("values", "BR", "float32", "critic", "expected return at each response token"),
    Column("scores", "B", "float32", "reward model", "one number a row"),
    Column("costs", "B", "float32", "cost model", "one number a row"),
    Column("advantages", "BR", "float32", "algorithm", "per token"),
    Column("returns", "BR", "float32", "algorithm", "the critic's target, per token"),
    Column("second_mask", "BR", "bool", "data", "response tokens of the second data set's rows"),
    Column("loss_mask", "BR", "bool", "algorithm", "response tokens that count in the loss"),
)

COLUMNS: Schema = {column.name: column for column in _TABLE}
"""The core's own columns by name."""


def make_schema(*more: Iterable[Column]) -> dict[str, Column]:
    """The core's columns and further ones; a name declared twice must be declared alike.

    Raises ValueError when two declarations of one name differ.
    """
    schema = dict(COLUMNS)
    for columns in more:
        for column in columns:
            known = schema.setdefault(column.name, column)
            if (known.shape, known.dtype) != (column.shape, column.dtype):
                raise ValueError(
                    f"column '{column.name}' is declared as {known.shape} {known.dtype} and as "
                    f"{column.shape} {column.dtype}"
                )
    return schema
