"""From groups of episodes to a batch: the only place that writes the collector's columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlframe.batch import Batch
from rlframe.columns import Schema
from rlframe.errors import BatchError
from rlframe.interfaces.transfer import TransferEngine
from rlframe.packed import Packed
from rlframe.requests import Episode, Group, Segment

__all__ = ["batch_of"]


def batch_of(
    groups: Iterable[Group], *, schema: Schema, transfer: TransferEngine | None = None
) -> Batch:
    """One row a segment, ordered by group and episode, so that arrival order changes nothing.

    Reward columns exist where every episode has a reward, ``token_rewards`` where a segment has.
    """
    episodes = [
        episode
        for group in sorted(groups, key=lambda g: g.row.group_id)
        for episode in sorted(group.episodes, key=lambda e: e.request.episode_id)
    ]
    rows = [(episode, segment) for episode in episodes for segment in episode.segments]
    if not rows:
        raise BatchError("no episode to make a batch of")
    columns = _columns([e for e, _ in rows], [s for _, s in rows])
    return Batch.from_columns(columns, schema=schema, transfer=transfer)


def _columns(episodes: Sequence[Episode], segments: Sequence[Segment]) -> dict[str, Any]:
    def ragged(field: str, dtype: str) -> Packed:
        return Packed.from_rows([getattr(s, field) for s in segments], dtype)

    requests = [episode.request for episode in episodes]
    columns: dict[str, Any] = {
        "prompt_ids": ragged("prompt_ids", "int64"),
        "response_ids": ragged("response_ids", "int64"),
        "response_mask": ragged("response_mask", "bool"),
        "rollout_logprobs": ragged("logprobs", "float32"),
        "policy_version": ragged("versions", "int32"),
        "turn_ids": ragged("turn_ids", "int32"),
        "response_tokens": np.array([sum(s.response_mask) for s in segments], np.int64),
        "response_limit": np.array([r.sampling.max_new_tokens for r in requests], np.int64),
        "group_ids": np.array([r.group_id for r in requests], np.int64),
        "episode_ids": np.array([r.episode_id for r in requests], np.int64),
        "train": np.array([r.train for r in requests], bool),
        "finish_reason": [episode.finish_reason for episode in episodes],
    }
    if all(episode.reward is not None for episode in episodes):
        columns["rewards"] = np.array([e.reward for e in episodes], np.float32)
        names = sorted({name for episode in episodes for name in episode.reward_parts})
        columns["reward_parts"] = np.array(
            [[e.reward_parts.get(name, math.nan) for name in names] for e in episodes], np.float32
        ).reshape(len(episodes), len(names))
    if any(segment.token_rewards is not None for segment in segments):
        zeros = [s.token_rewards or [0.0] * len(s.response_ids) for s in segments]
        columns["token_rewards"] = Packed.from_rows(zeros, "float32")
    for name in dict.fromkeys(name for episode in episodes for name in episode.columns):
        columns[name] = [episode.columns.get(name) for episode in episodes]
    return columns
