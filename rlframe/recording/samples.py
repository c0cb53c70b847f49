"""What a run shows of its episodes: some samples a step, their tokens, or every completion."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlframe.batching.batch import Batch
from rlframe.collecting.entry import GroupEntry
from rlframe.recording.files import TOKENS

__all__ = ["Pieces", "TokenFile", "dump_lines", "pieces_of", "sample_rows"]

_MOST_TOKENS = 2048
"""Tokens of a response that are written, from its beginning."""

Pieces = Callable[[Sequence[int]], list[str]]
"""The text of each token of a list of ids."""


def sample_rows(entries: Sequence[GroupEntry], count: int) -> list[dict[str, Any]]:
    """The first episode of ``count`` groups, with its texts: only their rows are read."""
    shown = list(entries[:count])
    if not shown:
        return []
    names = ("prompt_text", "response_text")
    texts = Batch.concat([entry.batch.take([0]).select(names) for entry in shown])
    written = zip(texts["prompt_text"], texts["response_text"], strict=True)
    rows = []
    for entry, (prompt, response) in zip(shown, written, strict=True):
        episode = entry.episodes[0]
        rows.append(
            {
                "group_id": entry.group_id,
                "prompt": prompt,
                "response": response,
                "reward": episode.reward,
                **{f"reward/{n}": v for n, v in episode.reward_parts.items()},
                "tokens": episode.length,
                "finish_reason": episode.finish_reason,
            }
        )
    return rows


def dump_lines(entries: Sequence[GroupEntry]) -> Iterator[str]:
    """One JSON object a row, which the ``replay`` rollout engine reads."""
    names = ("prompt_ids", "response_ids", "rollout_logprobs", "policy_version")
    batch = Batch.concat([entry.batch.select(names) for entry in entries])
    columns = [batch.packed(name).rows() for name in names]
    episodes = [(entry, episode) for entry in entries for episode in entry.by_row()]
    for (entry, episode), *row in zip(episodes, *columns, strict=True):
        prompt, tokens, logprobs, versions = (values.tolist() for values in row)
        line = {
            "prompt_ids": prompt,
            "group_id": entry.group_id,
            "episode_id": episode.episode_id,
            "token_ids": tokens,
            "logprobs": logprobs,
            "versions": versions,
            "finish_reason": episode.finish_reason,
            "reward": episode.reward,
        }
        yield json.dumps(line) + "\n"


def pieces_of(tokenizer: Any) -> Pieces:
    """The text of each token by itself; a blank that the tokenizer keeps in its mark is shown."""

    def pieces(ids: Sequence[int]) -> list[str]:
        texts = tokenizer.batch_decode([[one] for one in ids], skip_special_tokens=False)
        marks = tokenizer.convert_ids_to_tokens(list(ids))
        return [
            f" {text}" if str(mark).startswith("\u2581") and not text.startswith(" ") else text
            for text, mark in zip(texts, marks, strict=True)
        ]

    return pieces


class TokenFile:
    """``tokens.jsonl``: the tokens of the episodes that are shown as samples, once learned from.

    One JSON object a row of such an episode: text, log-probability (nats), mask and advantage of
    each token. After a resume the later line of a step, episode and row holds.
    """

    _COLUMNS = ("response_mask", "rollout_logprobs", "advantages")

    def __init__(self, run_dir: Path, pieces: Pieces) -> None:
        self._path, self._pieces = run_dir / TOKENS, pieces
        self._shown: dict[int, int] = {}

    def show(self, entries: Sequence[GroupEntry]) -> None:
        """The first episode of each group is to be written when its step is learned from."""
        self._shown |= {entry.episodes[0].episode_id: entry.group_id for entry in entries}

    def write(self, step: int, batch: Batch) -> None:
        """Write what was to be shown of a step's batch, and read nothing else of it."""
        if not self._shown or "episode_ids" not in batch:
            return
        episodes = np.asarray(batch["episode_ids"])
        places = [place for place, one in enumerate(episodes) if int(one) in self._shown]
        if not places:
            return
        names = [name for name in self._COLUMNS if name in batch]
        few = batch.take(places).select(["response_ids", *names])
        columns = {name: few.packed(name).rows() for name in ("response_ids", *names)}
        lines, seen = [], dict[int, int]()
        for row, place in enumerate(places):
            episode = int(episodes[place])
            seen[episode] = seen.get(episode, -1) + 1
            values = {name: rows[row][:_MOST_TOKENS].tolist() for name, rows in columns.items()}
            ids = values.pop("response_ids")
            line = {
                "step": step,
                "group_id": self._shown[episode],
                "episode_id": episode,
                "row": seen[episode],
                "tokens": self._pieces(ids),
                **{name: [_finite(v) for v in some] for name, some in values.items()},
            }
            lines.append(json.dumps(line) + "\n")
        self._shown = {}
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(lines)


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
