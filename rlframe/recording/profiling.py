"""A torch profile of chosen steps: one Chrome trace a rank in the run's folder."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from rlframe.interfaces.cluster import WorkerGroup

__all__ = ["StepProfiles", "TorchProfile"]


class TorchProfile:
    """What one process computes from its making to :meth:`write`."""

    def __init__(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        self._profile: Any = profile(activities=kinds, record_shapes=True)
        self._profile.start()

    def write(self, file: Path) -> None:
        """End it and write the trace."""
        self._profile.stop()
        file.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(file))


class StepProfiles:
    """Profiles ``steps`` on every rank of ``group``, into ``RUN/profile/step-000003/``."""

    def __init__(self, group: WorkerGroup, run_dir: Path, steps: Collection[int]) -> None:
        self._group, self._folder, self._steps = group, run_dir / "profile", frozenset(steps)
        self._open = 0

    def begin(self, step: int) -> None:
        """A step begins."""
        if step in self._steps and not self._open:
            self._group.call("profile", None).result()
            self._open = step

    def end(self) -> None:
        """It has ended."""
        if self._open:
            folder = self._folder / f"step-{self._open:06d}"
            self._open = 0
            self._group.call("profile", folder).result()
