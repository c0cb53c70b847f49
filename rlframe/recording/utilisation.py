"""``perf/mfu`` of a run's steps (:mod:`rlframe.recording.mfu`), and the memory of its workers."""

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
        self._memory: list[tuple[float, float]] = []

    def updated(self, batch: Batch, epochs: int) -> None:
        """Count an update; ask each rank for the most memory that it has held."""
        self._memory = self._group.call("peak_memory").result()
        if self._peak is None:
            self._peak = sum(self._group.call("peak_flops").result())
            self._shape = _shape_at(self._path)
        if self._shape is not None:
            self._flops += update_flops(self._shape, batch, epochs)

    def figures(self, seconds: float) -> dict[str, float]:
        """Of the updates since the last call, which took so long; without what is not known.

        The memory is that of the rank which held most, since the run began.
        """
        flops, self._flops = self._flops, 0.0
        found = {}
        if flops and seconds and self._peak:
            found["perf/mfu"] = flops / seconds / self._peak
        for name, peaks in zip(("worker", "device"), zip(*self._memory, strict=True), strict=False):
            if max(peaks):
                found[f"perf/{name}_memory_peak_gb"] = max(peaks)
        return found


def _shape_at(path: str) -> Shape | None:
    try:
        return Shape.of(resolve_model(path))
    except ModelError:
        return None
