"""Validation where models of the run score the answers: rewards, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlframe.batching.assemble import join_entries
from rlframe.calling.together import infer_together
from rlframe.collecting.client import CollectorClient
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.recording.metrics import Stopwatch, validation_metrics
from rlframe.requests import Row
from rlframe.roles import RoleSpec

__all__ = ["model_scores"]


def model_scores(
    collector: CollectorClient,
    rows: Sequence[Row],
    scorers: Sequence[RoleSpec],
    groups: Mapping[str, WorkerGroup],
) -> dict[str, float]:
    """Means of what every score model gives to one answer a row, under ``val/``."""
    entries = collector.collect(rows, samples=1).result().accepted
    batch = infer_together(scorers, groups, join_entries(entries), Stopwatch())
    out = validation_metrics(entries)
    out["val/episodes"] = float(len(np.unique(np.asarray(batch["episode_ids"]))))
    out["val/response_length/mean"] = float(np.asarray(batch["response_tokens"]).mean())
    for role in scorers:
        for column in role.outputs.values():
            name = "reward" if column == "rewards" else column
            out[f"val/{name}/mean"] = float(np.asarray(batch[column]).mean())
    batch.transfer.free(batch.handles())
    return out
