"""``perf/mfu`` of a run's steps; see :mod:`rlframe.recording.mfu`."""

from __future__ import annotations

from rlframe.batching.batch import Batch
from rlframe.errors import ModelError
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.models.paths import resolve_model
from rlframe.recording.mfu import Shape, update_flops

__all__ = ["Utilisation"]


class Utilisation:
    """Of the ``group`` that trains the model at ``path``; devices tell their peak once."""

    def __init__(self, group: WorkerGroup, path: str) -> None:
        self._group, self._path = group, path
        self._peak: float | None = None
        self._shape: Shape | None = None
        self._flops = 0.0

    def updated(self, batch: Batch, epochs: int) -> None:
        """Count an update."""
        if self._peak is None:
            self._peak = sum(self._group.call("peak_flops").result())
            self._shape = _shape_at(self._path)
        if self._shape is not None:
            self._flops += update_flops(self._shape, batch, epochs)

    def figures(self, seconds: float) -> dict[str, float]:
        """``perf/mfu`` of the updates since the last call, which took so long; {} if not known."""
        flops, self._flops = self._flops, 0.0
        if not (flops and seconds and self._peak):
            return {}
        return {"perf/mfu": flops / seconds / self._peak}


def _shape_at(path: str) -> Shape | None:
    try:
        return Shape.of(resolve_model(path))
    except ModelError:
        return None
