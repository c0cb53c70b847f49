"""Figures about a batch and a step, under the names that users of verl know.

Lengths are sums of masks, in tokens; times are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from rlframe.batching.assemble import part_names
from rlframe.batching.batch import Batch
from rlframe.collecting.entry import EpisodeSummary, GroupSummary
from rlframe.ops import has_signal
from rlframe.requests import Episode, Group
from rlframe.timeline import CONTROLLER, Span, SpanLog, now

__all__ = [
    "ROLE_PREFIX",
    "Stopwatch",
    "batch_metrics",
    "score_metrics",
    "staleness_metrics",
    "validation_metrics",
]

ROLE_PREFIX = {"policy": "actor"}
"""What stands before the figures of a role's update where it is not the role's name."""


class Stopwatch:
    """Seconds by stage name since the last :meth:`take`."""

    def __init__(self, spans: SpanLog | None = None) -> None:
        """``spans`` is told of each stage, too."""
        self._seconds: dict[str, float] = {}
        self._spans = spans or SpanLog(1)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a ``with`` block to a stage."""
        started = now()
        try:
            yield
        finally:
            ended = now()
            self._spans.add(Span(CONTROLLER, name, started, ended))
            self._seconds[name] = self._seconds.get(name, 0.0) + ended - started

    def take(self) -> dict[str, float]:
        """``timing_s/STAGE`` of every stage, and start again."""
        out = {f"timing_s/{name}": seconds for name, seconds in self._seconds.items()}
        self._seconds = {}
        return out


def _spread(prefix: str, values: NDArray[np.float64]) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        f"{prefix}/mean": float(values.mean()),
        f"{prefix}/max": float(values.max()),
        f"{prefix}/min": float(values.min()),
    }


def batch_metrics(batch: Batch, groups: Sequence[GroupSummary]) -> dict[str, float]:
    """Rewards and lengths of the rows that are trained on, and the number of their episodes.

    ``groups`` are those of the batch.
    """
    train = np.asarray(batch["train"], bool)
    response = np.asarray(batch["response_tokens"])[train].astype(np.float64)
    prompt = batch.lengths("prompt_ids")[train].astype(np.float64)
    ordered = sorted(groups, key=lambda group: group.group_id)
    ends = [episode.finish_reason for group in ordered for episode in group.by_row()]
    reasons = np.array(ends, object)[train]
    out = _spread("response_length", response) | _spread("prompt_length", prompt)
    out["response_length/clip_ratio"] = float((reasons == "length").mean()) if len(reasons) else 0.0
    out["response/aborted_ratio"] = float((reasons == "abort").mean()) if len(reasons) else 0.0
    tokens = batch.lengths("prompt_ids").sum() + batch.lengths("response_ids").sum()
    out["perf/total_num_tokens"] = float(tokens)
    out["collect/episodes"] = float(len(np.unique(np.asarray(batch["episode_ids"])[train])))
    out |= _environment_figures([e for group in groups for e in group.episodes if e.train])
    if "rewards" not in batch:
        return out
    rewards = np.asarray(batch["rewards"]).astype(np.float64)[train]
    out |= _spread("critic/rewards", rewards) | _spread("critic/score", rewards)
    flat = [not has_signal(group.rewards) for group in groups]
    out["critic/rewards/zero_variance_groups"] = float(np.mean(flat))
    parts = np.asarray(batch["reward_parts"]).astype(np.float64)[train]
    for position, name in enumerate(part_names(groups)):
        known = parts[:, position][~np.isnan(parts[:, position])]
        if len(known):
            out[f"reward/{name}/mean"] = float(known.mean())
    return out


def _environment_figures(
    episodes: Sequence[EpisodeSummary | Episode], prefix: str = "env"
) -> dict[str, float]:
    """Mean over the episodes of each figure that any has; one that has it not counts as 0."""
    names = sorted({name for e in episodes for name in e.figures})
    return {
        f"{prefix}/{name}": float(np.mean([e.figures.get(name, 0.0) for e in episodes]))
        for name in names
    }


def score_metrics(batch: Batch, names: Iterable[str]) -> dict[str, float]:
    """Figures of what score models wrote, one number a row, over the rows that are trained on."""
    out: dict[str, float] = {}
    train = np.asarray(batch["train"], bool)
    for name in sorted(names):
        if batch.schema[name].shape != "B":
            continue
        values = np.asarray(batch[name]).astype(np.float64)[train]
        if name != "rewards":
            out |= _spread(name, values)
            continue
        out |= _spread("critic/rewards", values) | _spread("critic/score", values)
        ids = np.asarray(batch["group_ids"])[train]
        flat = [not has_signal(values[ids == one].tolist()) for one in np.unique(ids)]
        out["critic/rewards/zero_variance_groups"] = float(np.mean(flat)) if flat else 0.0
    return out


def staleness_metrics(groups: Sequence[GroupSummary], version: int) -> dict[str, float]:
    """Versions between the weights that sampled a token and those that learn from it.

    The mean is over groups by their oldest token, the maximum over all.
    """
    ages = [version - g.oldest_version for g in groups if g.oldest_version >= 0]
    if not ages:
        return {}
    return {
        "training/staleness/mean": float(np.mean(ages)),
        "training/staleness/max": float(max(ages)),
    }


def validation_metrics(groups: Sequence[Group] | Sequence[GroupSummary]) -> dict[str, float]:
    """Mean reward, each part and the length over validation episodes."""
    episodes = [e for group in groups for e in group.episodes if e.reward is not None]
    out: dict[str, float] = {"val/episodes": float(len(episodes))}
    if not episodes:
        return out
    out["val/reward/mean"] = float(np.mean([e.reward for e in episodes]))
    out["val/response_length/mean"] = float(np.mean([e.length for e in episodes]))
    names = sorted({name for e in episodes for name in e.reward_parts})
    for name in names:
        known = [e.reward_parts[name] for e in episodes if name in e.reward_parts]
        out[f"val/reward/{name}/mean"] = float(np.mean(known))
    return out | _environment_figures(episodes, "val/env")
