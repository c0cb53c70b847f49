"""Validating while a run goes on: held-out prompts, greedy answers, their rewards or losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from typing import Any

from rlframe.algorithm import Algorithm
from rlframe.batching.assemble import join_entries
from rlframe.batching.batch import Batch
from rlframe.batching.plan import plan_batch
from rlframe.collecting.client import CollectorClient
from rlframe.config import Config
from rlframe.data import read_rows
from rlframe.evaluating.model_scores import model_scores
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.interfaces.data import Dataset
from rlframe.recording.metrics import validation_metrics
from rlframe.requests import Row, Sampling
from rlframe.roles import reads_text, roles_of

__all__ = ["validation_rows", "validator_of"]


def validation_rows(
    config: Config, dataset: Dataset | None, tokenizer: Any, sampling: Sampling
) -> list[Row]:
    """The prompts to validate on, as they are asked for: greedily."""
    if dataset is None:
        return []
    greedy = dataclasses.replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
    rows = read_rows(dataset, tokenizer, config.data, sampling=greedy)
    chosen = list(islice(rows, config.run.validation_prompts))
    return [dataclasses.replace(row, group_id=-1 - row.group_id) for row in chosen]


def validator_of(
    config: Config,
    collector: CollectorClient,
    rows: list[Row],
    groups: Mapping[str, WorkerGroup],
    algorithm: Algorithm,
) -> Callable[[], Mapping[str, float]] | None:
    """Greedy answers and their rewards; for offline methods the loss on held-out rows."""
    if not rows:
        return None
    if not algorithm.offline:
        scorers = [role for role in roles_of(config, algorithm) if reads_text(role)]
        if scorers:
            return lambda: model_scores(collector, rows, scorers, groups)
        return lambda: validation_metrics(collector.validate(rows).result())
    batch = join_entries(collector.collect(rows).result().accepted)
    plan = plan_batch(
        batch,
        epochs=1,
        minibatch_prompts=0,
        budget=config.optim.tokens_per_microbatch,
        ranks=groups["policy"].mesh.dp,
        width=groups["policy"].width,
        atom_ids=algorithm.atoms(batch),
    )

    @cache
    def scored() -> Batch:
        """With the columns of roles that never change."""
        out = batch
        for role in (role for role in algorithm.scorers() if not role.trained):
            out = out.add_handles(groups[role.name].call("infer", out).result())
        return out

    def evaluate() -> dict[str, float]:
        figures = groups["policy"].call("evaluate", scored(), plan).result()[0]
        return {f"val/{name}": value for name, value in figures.items()}

    return evaluate
