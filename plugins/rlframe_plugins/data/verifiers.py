"""``verifiers:TASKSET?size=..&key=..``: the tasks of a taskset of the package ``verifiers``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from rlframe import ConfigError
from rlframe.interfaces.data import Dataset
from rlframe_plugins.data.uri import fingerprint_of, json_value, split_options
from rlframe_plugins.envs.verifiers.columns import TASK, TASKSET

__all__ = ["VerifiersDataset"]


class VerifiersDataset(Dataset):
    """Rows of one taskset: ``prompt``, ``task`` (all of its data), ``data_source`` (its id).

    ``size`` is the number of rows, the first ones (without it all; an endless taskset needs it);
    every other option is one of the taskset's own. Raises ConfigError.
    """

    def __init__(self, taskset: str, options: Mapping[str, Any] | None = None) -> None:
        self.taskset = taskset
        given = dict(options or {})
        size = given.pop("size", None)
        if size is not None and (not isinstance(size, int) or size < 1):
            raise self._wrong(f"size must be a whole number of at least 1, not {size!r}")
        self._rows = [self._row(task) for task in self._load(given, size)]
        if not self._rows:
            raise self._wrong("the taskset has no tasks")
        parts = [taskset, version("verifiers"), *(json.dumps(row[TASK]) for row in self._rows)]
        self._fingerprint = fingerprint_of(parts)

    @classmethod
    def open(cls, uri: str) -> VerifiersDataset:
        """Open ``verifiers:my-taskset?size=500&split=train``."""
        taskset, options = split_options(uri.partition(":")[2])
        return cls(taskset, {name: json_value(text) for name, text in options.items()})

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """The row of the task with this number."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._rows[index]

    def where(self, index: int) -> str:
        """``verifiers:TASKSET: task N``, counted from 0 as verifiers does."""
        return f"verifiers:{self.taskset}: task {index}"

    @property
    def fingerprint(self) -> str:
        """Hash of the library's version and all tasks."""
        return self._fingerprint

    def _load(self, options: dict[str, Any], size: int | None) -> list[Any]:
        from verifiers.v1 import load_taskset, taskset_config_type

        try:
            kind = taskset_config_type(self.taskset)
            tasks = load_taskset(kind.model_validate({**options, "id": self.taskset}))
            if size is None and not tasks.bounded:
                raise ValueError("it is endless: say how many tasks, ?size=1000")
            return list(itertools.islice(tasks, size))
        except Exception as error:  # a taskset raises what it likes
            raise self._wrong(f"{type(error).__name__}: {error}") from error

    def _row(self, task: Any) -> dict[str, Any]:
        for name, field in type(task.data).model_fields.items():
            if field.exclude:
                raise self._wrong(f"field '{name}' of its tasks is left out of what can be sent")
        data = task.data.model_dump(mode="json")
        prompt = task.data.prompt_text or task.data.name or f"{self.taskset} {task.data.idx}"
        return {"prompt": prompt, TASK: data, TASKSET: self.taskset}

    def _wrong(self, reason: str) -> ConfigError:
        return ConfigError(f"data 'verifiers:{self.taskset}': {' '.join(reason.split())}")
