"""What the verifier of a reasoning-gym task says of a response."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlframe import Episode, RewardError, Row
from rlframe.errors import unknown_name
from rlframe.interfaces.data import Reward, RewardValue
from rlframe.rewards.calls import FunctionThread
from rlframe_plugins.rewards.number import last_number

__all__ = ["ReasoningGymReward"]

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGymReward(Reward):
    """The score, 0 to 1, of the task that made the row (see dataset ``reasoning_gym``).

    Needs the columns ``answer`` and ``metadata``; other answers than the one in the row are right
    where the task's own verifier says so. Some tasks give a little for a wrong answer (0.01).
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the reasoning-gym reward."""

        take: Literal["auto", "all", "tag", "number"] = "auto"
        """The answer: all, the last <answer> tag, the last number; auto: the tag, else all."""

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())
        self._thread = FunctionThread("reward reasoning-gym")
        self._verifiers: dict[str, Callable[..., Any]] = {}

    def check(self, columns: Sequence[str]) -> None:
        """Raises RewardError when the rows are not reasoning-gym's."""
        for name in ("answer", "metadata"):
            if name not in columns:
                raise RewardError(
                    f"reward 'reasoning-gym' needs column '{name}', which the dataset does not "
                    f"have; it has: {', '.join(sorted(columns))}. Use data reasoning_gym:TASK"
                )

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`. Raises RewardError for a row of no known task."""
        self.check(list(row.columns))
        entry = {
            "question": row.columns.get("prompt"),
            "answer": row.columns["answer"],
            "metadata": row.columns["metadata"],
        }
        verify = self._verifier(row.columns)
        answers = [self._taken(episode.text) for episode in episodes]
        values: list[float] = await self._thread.run(
            lambda: [float(verify(answer=answer, entry=entry)) for answer in answers], None
        )
        return list(values)

    def _verifier(self, columns: Mapping[str, Any]) -> Callable[..., Any]:
        from reasoning_gym.factory import DATASETS, get_score_answer_fn

        metadata = columns["metadata"]
        task = metadata.get("source_dataset") if isinstance(metadata, Mapping) else None
        task = str(task or columns.get("data_source"))
        if task not in DATASETS:
            text = unknown_name("task", task, DATASETS)
            raise RewardError(f"reward 'reasoning-gym': metadata.source_dataset: {text}")
        if task not in self._verifiers:
            self._verifiers[task] = get_score_answer_fn(task)
        return self._verifiers[task]

    def _taken(self, text: str) -> str | None:
        tags = _TAG.findall(text) if self.config.take in ("auto", "tag") else []
        if self.config.take == "number":
            number = last_number(text)
            return None if number is None else f"{number:f}"
        if tags:
            return str(tags[-1]).strip()
        return text.strip() if self.config.take != "tag" else None
