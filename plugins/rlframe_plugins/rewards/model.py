"""A score model as a reward: any sequence classifier, beside other rewards, when a group ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlframe import Episode, ModelError, RewardError, Row
from rlframe.config import check_choice, check_range
from rlframe.data.render import conversation_tokens
from rlframe.interfaces.data import Reward, RewardValue
from rlframe.models.paths import resolve_model

__all__ = ["ModelReward"]


class ModelReward(Reward):
    """The score of ``AutoModelForSequenceClassification`` with one label for a conversation.

    Prompt and response are rendered by the model's own chat template, or joined as text where it
    has none. It runs in the collector's process, so that ``Algorithm.accept`` sees its scores and
    its weight adds it to other rewards; a large model is better a role (``roles.reward``), on
    devices of its own.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the model reward."""

        path: str
        """Folder or hub name of the classifier."""
        device: str = "cpu"
        """Device of torch, such as cpu or cuda:0."""
        dtype: Literal["float32", "bfloat16", "float16"] = "float32"
        """Type of the weights."""
        batch: int = 16
        """Conversations in one forward pass, at least 1."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            check_choice(self, "dtype", "float32", "bfloat16", "float16")
            check_range(self, "batch", 1)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._lock = threading.Lock()
        self._model: Any = None
        self._tokenizer: Any = None

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`; one group at a time, in a thread of its own."""
        prompt = row.columns.get("prompt")
        if not isinstance(prompt, str | list | tuple):
            raise RewardError(f"{row.source}: the reward 'model' needs the prompt's text")
        texts = [episode.text for episode in episodes]
        return list(await asyncio.to_thread(self._scores, prompt, texts))

    def _scores(self, prompt: Any, texts: Sequence[str]) -> list[float]:
        import torch

        with self._lock, torch.no_grad():
            if self._model is None:
                self._load()
            rows = [conversation_tokens(prompt, text, self._tokenizer) for text in texts]
            size = 1 if self._model.config.pad_token_id is None else self.config.batch
            parts = [rows[i : i + size] for i in range(0, len(rows), size)]
            return [score for part in parts for score in self._forward(part)]

    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        import torch

        width = max(map(len, rows))
        pad = self._model.config.pad_token_id
        ids = torch.full((len(rows), width), 0 if pad is None else pad)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        device = self._model.device
        out = self._model(input_ids=ids.to(device), attention_mask=mask.to(device))
        scores: list[float] = out.logits[:, 0].float().tolist()
        return scores

    def _load(self) -> None:
        """Raises ModelError."""
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        path = resolve_model(self.config.path)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                path,
                dtype=getattr(torch, self.config.dtype),
                trust_remote_code=False,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"reward 'model' cannot load '{path}': {error}") from error
        if report["missing_keys"] or model.config.num_labels != 1:
            lacks = ", ".join(sorted(report["missing_keys"])) or f"{model.config.num_labels} labels"
            raise ModelError(f"reward 'model': '{path}' is no classifier with one label ({lacks})")
        self._model = model.to(self.config.device).eval()
