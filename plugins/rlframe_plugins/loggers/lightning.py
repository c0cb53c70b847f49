"""What the loggers of Lightning have in common here: opening, figures, the end of a run."""

from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlframe import Config, ConfigError, SnapshotError
from rlframe.interfaces.loop import Logger, Metrics
from rlframe.recording.summary import read_summary
from rlframe.snapshots.durable import replace_text

__all__ = ["Cell", "LightningLogger", "Table", "remembered", "table"]

Cell = str | float | int | None
Table = tuple[list[str], list[list[Cell]]]
"""Column names, and rows of plain values."""


class LightningLogger(Logger):
    """A logger of ``lightning.pytorch.loggers`` behind our interface."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._logger: Any = None
        self._run_dir = Path()

    @abstractmethod
    def open(self, run_dir: Path, config: Config, first_step: int) -> Any:
        """The Lightning logger, with the run's options logged; ``first_step`` steps are done."""

    def end(self, logger: Any, status: str) -> None:
        """Close it; ``status`` is that of the summary (finished, stopped: .., failed: ..)."""
        logger.finalize("success" if status == "finished" else "failed")

    def start(self, run_dir: str, config: Config, total_steps: int, first_step: int) -> None:
        """See :class:`Logger`. Raises ConfigError where the service cannot be reached or used."""
        self._run_dir = Path(run_dir)
        try:
            self._logger = self.open(self._run_dir, config, first_step)
        except Exception as error:
            text = " ".join(str(error).split())
            name = type(self).__name__
            raise ConfigError(f"{name} cannot start: {type(error).__name__}: {text}") from error

    def log(self, step: int, metrics: Metrics) -> None:
        """See :class:`Logger`."""
        self._logger.log_metrics({name: _number(v) for name, v in metrics.items()}, step=step)

    def close(self) -> None:
        """See :class:`Logger`."""
        if self._logger is None:
            return
        logger, self._logger = self._logger, None
        try:
            status = str(read_summary(self._run_dir)["status"])
        except SnapshotError:
            status = "failed: no summary"
        self.end(logger, status)


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows with any columns as a rectangle; a column is all numbers or all text, None aside."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in columns] for row in rows]
    for position in range(len(columns)):
        if any(isinstance(row[position], str) for row in cells):
            for row in cells:
                row[position] = None if row[position] is None else str(row[position])
    return columns, cells


def remembered(path: Path) -> str:
    """The id in a file; a new one is made and kept where there is none yet."""
    if path.is_file():
        return path.read_text(encoding="utf-8").strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    made = secrets.token_hex(4)
    replace_text(path, made)
    return made


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)


def _cell(value: Any) -> Cell:
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
