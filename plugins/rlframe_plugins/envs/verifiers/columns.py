"""The columns of a taskset's rows, which the data set writes and the environment reads."""

from __future__ import annotations

__all__ = ["TASK", "TASKSET"]

TASK = "task"
"""A task's data as JSON has it."""
TASKSET = "data_source"
"""The id of its taskset."""
