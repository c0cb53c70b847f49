"""From groups of episodes to a batch: the only place that writes the collector's columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.batching.batch import Batch
from rlframe.batching.columns import Schema
from rlframe.batching.pack_columns import pack_columns
from rlframe.batching.packed import Packed
from rlframe.collecting.entry import EpisodeSummary, GroupEntry, GroupSummary
from rlframe.errors import BatchError
from rlframe.interfaces.transfer import TransferEngine
from rlframe.requests import Group, Segment

__all__ = ["batch_of", "join_entries", "pack_groups", "part_names"]


def batch_of(
    groups: Iterable[Group], *, schema: Schema, transfer: TransferEngine | None = None
) -> Batch:
    """The batch of some groups, as :func:`join_entries` makes it."""
    columns, summaries = pack_groups(groups, schema)
    if not columns:
        raise BatchError("no episode to make a batch of")
    batch = Batch.from_columns(columns, schema=schema, transfer=transfer)
    return _with_parts(batch, summaries)


def pack_groups(
    groups: Iterable[Group], schema: Schema, prompt_key: str = "prompt"
) -> tuple[dict[str, Packed], list[GroupSummary]]:
    """One block a column for all groups together, and the groups in the order of their rows.

    One row a segment, ordered by group and episode, so that arrival order changes nothing. A column
    ``rewards`` is there where every episode has a reward, ``token_rewards`` where a segment has.
    Raises BatchError for columns of episodes that do not fit their declaration.
    """
    ordered = sorted(groups, key=lambda g: g.row.group_id)
    episodes = [
        (group, episode)
        for group in ordered
        for episode in sorted(group.episodes, key=lambda e: e.request.episode_id)
    ]
    rows = [(g, episode, segment) for g, episode in episodes for segment in episode.segments]
    summaries = [GroupSummary.of(group) for group in ordered]
    if not rows:
        return {}, summaries
    columns = _columns(rows, prompt_key)
    return pack_columns(columns, schema, len(rows), lambda axis: None), summaries


def join_entries(entries: Sequence[GroupEntry]) -> Batch:
    """The batch of a step: the rows of all groups by group id, and ``reward_parts`` of all."""
    ordered = sorted(entries, key=lambda entry: entry.group_id)
    if not ordered:
        raise BatchError("no episode to make a batch of")
    return _with_parts(Batch.concat(_alike([entry.batch for entry in ordered])), ordered)


def part_names(groups: Iterable[GroupSummary]) -> list[str]:
    """Names of the reward parts, in the order of the ``reward_parts`` column."""
    return sorted({name for g in groups for e in g.episodes for name in e.reward_parts})


def _columns(rows: Sequence[tuple[Group, Any, Any]], prompt_key: str) -> dict[str, Any]:
    segments = [segment for _, _, segment in rows]
    episodes = [episode for _, episode, _ in rows]

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
        "turn_tokens": np.array([_longest_turn(s) for s in segments], np.int64),
        "response_limit": np.array([r.sampling.max_new_tokens for r in requests], np.int64),
        "group_ids": np.array([r.group_id for r in requests], np.int64),
        "episode_ids": np.array([r.episode_id for r in requests], np.int64),
        "train": np.array([r.train for r in requests], bool),
        "finish_reason": [episode.finish_reason for episode in episodes],
        "prompt_text": [group.row.columns.get(prompt_key) for group, _, _ in rows],
        "response_text": [episode.text for episode in episodes],
    }
    if all(episode.reward is not None for episode in episodes):
        columns["rewards"] = np.array([e.reward for e in episodes], np.float32)
    if any(segment.token_rewards is not None for segment in segments):
        zeros = [s.token_rewards or [0.0] * len(s.response_ids) for s in segments]
        columns["token_rewards"] = Packed.from_rows(zeros, "float32")
    for name in dict.fromkeys(name for episode in episodes for name in episode.columns):
        columns[name] = [episode.columns.get(name) for episode in episodes]
    return columns


def _longest_turn(segment: Segment) -> int:
    """The most tokens that the policy sampled in one turn of a row; 0: none."""
    sampled = zip(segment.turn_ids, segment.response_mask, strict=True)
    return max(Counter(turn for turn, mask in sampled if mask).values(), default=0)


def _with_parts(batch: Batch, groups: Sequence[GroupSummary]) -> Batch:
    """The batch with each reward's part, whose names are known once all groups are."""
    if "rewards" not in batch:
        return batch
    episodes = [episode for group in groups for episode in group.by_row()]
    return batch.carry({"reward_parts": _parts(episodes, part_names(groups))})


def _parts(episodes: Sequence[EpisodeSummary], names: Sequence[str]) -> NDArray[np.float32]:
    values = [[e.reward_parts.get(name, math.nan) for name in names] for e in episodes]
    return np.array(values, np.float32).reshape(len(episodes), len(names))


def _alike(batches: list[Batch]) -> list[Batch]:
    """The batches with equal columns: what only some groups have is filled, or left out."""
    names = dict.fromkeys(name for batch in batches for name in batch)
    if all(len(batch.columns) == len(names) for batch in batches):
        return batches
    if not all("rewards" in batch for batch in batches):
        names.pop("rewards", None)
    return [_fill(batch, list(names)) for batch in batches]


def _fill(batch: Batch, names: Sequence[str]) -> Batch:
    for name in names:
        if name in batch:
            continue
        if name == "token_rewards":
            batch = batch.carry({name: np.zeros(len(batch), np.float32)})
        elif batch.schema[name].dtype == "object":
            batch = batch.add({name: [None] * len(batch)})
        else:
            group = int(batch["group_ids"][0])
            raise BatchError(f"the episodes of group {group} have no column '{name}', others have")
    return batch.select(names)
