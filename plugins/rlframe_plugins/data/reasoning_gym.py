"""``reasoning_gym:TASK?size=..&seed=..&key=..``: endless tasks with verifiers, made as needed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from rlframe import ConfigError, DataError
from rlframe.errors import unknown_name
from rlframe.interfaces.data import Dataset
from rlframe_plugins.data.uri import fingerprint_of, json_value, split_options

__all__ = ["ReasoningGymDataset"]

SIZE = 1000
"""Rows where ``size`` is not said."""


class ReasoningGymDataset(Dataset):
    """Rows of one reasoning-gym task: ``prompt``, ``answer``, ``metadata``, ``data_source``.

    ``size`` is the number of rows (1000), ``seed`` chooses them (0); every other option is one of
    the task's own. Reward ``reasoning-gym`` scores with the task's verifier. Raises ConfigError.
    """

    def __init__(self, task: str, options: Mapping[str, Any] | None = None) -> None:
        self.task = task
        given = {"size": SIZE, "seed": 0, **(options or {})}
        self._tasks = _create(task, given)
        first = json.dumps(dict(self[0]), default=str, sort_keys=True)
        parts = [task, version("reasoning-gym"), json.dumps(given, sort_keys=True), first]
        self._fingerprint = fingerprint_of(parts)

    @classmethod
    def open(cls, uri: str) -> ReasoningGymDataset:
        """Open ``reasoning_gym:TASK?size=500&seed=1&max_terms=3``."""
        task, options = split_options(uri.partition(":")[2])
        return cls(task, {name: json_value(text) for name, text in options.items()})

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Make the row; the same index gives the same row."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        try:
            entry = self._tasks[index]
        except Exception as error:  # generators raise what they like
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"{self.where(index)}: it cannot be made: {reason}") from error
        return {
            "prompt": entry["question"],
            "answer": entry["answer"],
            "metadata": entry["metadata"],
            "data_source": self.task,
        }

    def where(self, index: int) -> str:
        """``reasoning_gym:TASK: row N``, counted from 1."""
        return f"reasoning_gym:{self.task}: row {index + 1}"

    @property
    def fingerprint(self) -> str:
        """Hash of task, options, the library's version and the first row."""
        return self._fingerprint


def _create(task: str, options: dict[str, Any]) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset

    if task not in DATASETS:
        raise ConfigError(f"data 'reasoning_gym:{task}': {unknown_name('task', task, DATASETS)}")
    known = [field.name for field in dataclasses.fields(DATASETS[task][1])]
    for name in options:
        if name not in known:
            text = unknown_name("option", name, known)
            raise ConfigError(f"data 'reasoning_gym:{task}': {text}")
    try:
        tasks = create_dataset(task, **options)
        if len(tasks) < 1:
            raise ValueError("size must be at least 1")
        return tasks
    except Exception as error:  # the task checks its options by assert
        reason = str(error) or type(error).__name__
        raise ConfigError(f"data 'reasoning_gym:{task}': {options}: {reason}") from error
