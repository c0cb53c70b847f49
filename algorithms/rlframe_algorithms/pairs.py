"""What methods on preference pairs share: reading them, keeping them together, their figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlframe import Algorithm, Column, DataError, Row, Term
from rlframe.algorithm import Example

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from rlframe import Batch

__all__ = ["PairMethod", "mean_of_pairs", "written_text"]


class PairMethod(Algorithm):
    """Base of the methods that learn from a better and a worse response to one prompt.

    A dataset row holds ``prompt``, ``chosen`` and ``rejected``, as TRL and verl name them: text, or
    chat messages that end with the response (with or without the prompt's messages before it). A
    row without a prompt of its own (TRL's implicit prompt) is refused. Both responses get the
    tokenizer's end token. A pair is one atom: its rows are always in the same micro-batch.
    """

    @dataclass(frozen=True)
    class Config(Algorithm.Config):
        """Options of every method on pairs."""

        samples_per_prompt: int = 1
        """Always 1: the data writes the responses."""
        chosen_key: str = "chosen"
        """Dataset column that holds the better response."""
        rejected_key: str = "rejected"
        """Dataset column that holds the worse response."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            fixed = {"samples_per_prompt": 1, "reduction": "token-mean"}
            fixed |= {"kl_coef": 0.0, "kl_estimator": "k3+", "entropy_coef": 0.0}
            for name, value in fixed.items():
                if getattr(self, name) != value:
                    raise ValueError(
                        f"{name} must be {value}, not {getattr(self, name)}: a method on pairs "
                        "samples nothing and has no term per token"
                    )

    config: Config
    offline: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[Column, ...]] = (
        Column("chosen", "B", "bool", "data", "True at the better response of a pair"),
    )

    def examples(self, row: Row) -> list[Example]:
        """Both responses, the better one first. Raises DataError where one is not there."""
        return [
            Example(written_text(row, key), {"chosen": better, **self.row_columns(row, better)})
            for key, better in ((self.config.chosen_key, True), (self.config.rejected_key, False))
        ]

    def row_columns(self, row: Row, better: bool) -> Mapping[str, Any]:
        """Further columns of one response."""
        return {}

    def atoms(self, batch: Batch) -> NDArray[np.int64]:
        """A pair is what one dataset row holds."""
        ids: NDArray[np.int64] = batch["group_ids"].numpy()
        return ids


def mean_of_pairs(values: Tensor, coef: float = 1.0) -> Term:
    """A term with one value a pair, (n,), averaged over the pairs of the whole mini-batch."""
    return Term(values, mask=None, reduction="mean", coef=coef, per="atom")


def written_text(row: Row, key: str) -> str:
    """The response in a dataset column: text, or chat messages of which it is the last.

    Messages before it must be those of the prompt. Raises DataError naming file, line and column.
    """
    if key not in row.columns:
        known = ", ".join(sorted(row.columns))
        raise DataError(
            f"{row.source}: no column '{key}' to learn from (it has {known}); "
            f"name the right one by algo.{_option(key)}=COLUMN"
        )
    written = row.columns[key]
    if isinstance(written, list | tuple) and written:
        return _last_message(row, key, list(written))
    if not isinstance(written, str):
        raise DataError(f"{row.source}: column '{key}' is {type(written).__name__}, not text")
    return written


def _option(key: str) -> str:
    return f"{key}_key" if key in ("chosen", "rejected", "response") else "..._key"


def _last_message(row: Row, key: str, messages: list[Any]) -> str:
    *before, last = messages
    prompt = row.columns.get("prompt")
    same = not before or (isinstance(prompt, list | tuple) and _plain(before) == _plain(prompt))
    if not same:
        raise DataError(
            f"{row.source}: column '{key}' has messages before the response that are not the "
            "prompt's: give the prompt's messages in its own column, and one response"
        )
    good = isinstance(last, Mapping) and last.get("role") == "assistant"
    if not good or not isinstance(last.get("content"), str):
        raise DataError(
            f"{row.source}: column '{key}' ends with {last!r}: its last message must be the "
            "assistant's, with text as its content"
        )
    content: str = last["content"]
    return content


def _plain(messages: Any) -> list[tuple[Any, Any]]:
    return [(m.get("role"), m.get("content")) for m in messages if isinstance(m, Mapping)]
