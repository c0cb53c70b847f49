"""What a run shows of its episodes: some samples a step, or every completion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rlframe.batching.batch import Batch
from rlframe.collecting.entry import GroupEntry

__all__ = ["dump_lines", "sample_rows"]


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
