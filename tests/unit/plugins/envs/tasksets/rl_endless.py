"""A taskset without end, and without a reward."""

from __future__ import annotations

import itertools

import verifiers.v1 as vf

__all__ = ["EndlessTaskset"]


class EndlessTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        return (vf.Task(vf.TaskData(prompt=str(n)), self.config.task) for n in itertools.count())
