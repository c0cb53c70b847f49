"""Calling several roles at once: pools work at the same time, each keeps the order of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlframe.algorithm import RoleSpec
from rlframe.batching.batch import Batch
from rlframe.batching.plan import UpdatePlan
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.recording.metrics import Stopwatch

__all__ = ["infer_together", "update_together"]

_INFER = {"policy": "old_log_prob", "reference": "ref", "critic": "values"}
_UPDATE = {"policy": "update_actor", "critic": "update_critic"}

Groups = Mapping[str, WorkerGroup]


def infer_together(
    roles: Sequence[RoleSpec], groups: Groups, batch: Batch, clock: Stopwatch
) -> Batch:
    """The batch with the columns of every role's forward pass. Raises the first role's failure."""
    asked = []
    for role in roles:
        with clock.stage(_infer_stage(role)):
            asked.append((role, groups[role.name].call("infer", batch)))
    for role, future in asked:
        with clock.stage(_infer_stage(role)):
            batch = batch.add_handles(future.result())
    return batch


def update_together(
    plans: Sequence[tuple[RoleSpec, UpdatePlan]], groups: Groups, batch: Batch, clock: Stopwatch
) -> Iterator[tuple[RoleSpec, Any]]:
    """What the update of each role gives, in order. Raises the first role's failure."""
    asked = []
    for role, plan in plans:
        with clock.stage(_update_stage(role)):
            asked.append((role, groups[role.name].call("update", batch, plan)))
    for role, future in asked:
        with clock.stage(_update_stage(role)):
            results = future.result()
        yield role, results


def _infer_stage(role: RoleSpec) -> str:
    return _INFER.get(role.name, role.name)


def _update_stage(role: RoleSpec) -> str:
    return _UPDATE.get(role.name, f"update_{role.name}")
