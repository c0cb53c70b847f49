"""Loggers of Lightning that write files: TensorBoard's events and a CSV table."""

from __future__ import annotations

import csv
import html
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlframe import Config as FitConfig
from rlframe.interfaces.loop import Metrics
from rlframe_plugins.loggers.lightning import Cell, LightningLogger, table

__all__ = ["CSVLogger", "TensorBoardLogger"]


class TensorBoardLogger(LightningLogger):
    """Events in ``tensorboard/`` of the run's folder; samples are text tables.

    A resumed run writes a new file that tells readers to drop what was logged for later steps.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the TensorBoard logger."""

        dir: str = ""
        """Folder for the events; empty takes tensorboard/ in the run's folder."""

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    def open(self, run_dir: Path, config: FitConfig, first_step: int) -> Any:
        """See :class:`LightningLogger`."""
        from lightning.pytorch.loggers import TensorBoardLogger

        folder = Path(self.config.dir).expanduser() if self.config.dir else run_dir / "tensorboard"
        purge = {"purge_step": first_step + 1} if first_step else {}
        logger = TensorBoardLogger(
            folder.parent, name="", version=folder.name, default_hp_metric=False, **purge
        )
        logger.log_hyperparams(config.to_dict())
        text = json.dumps(config.to_dict(), indent=2, default=str)
        logger.experiment.add_text("config", f"<pre>{html.escape(text)}</pre>", first_step)
        logger.save()
        return logger

    def log(self, step: int, metrics: Metrics) -> None:
        """See :class:`Logger`; the events are on disk when it returns."""
        super().log(step, metrics)
        self._logger.experiment.flush()

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`Logger`."""
        if rows:
            self._logger.experiment.add_text("samples", _markdown(rows), step)


class CSVLogger(LightningLogger):
    """``csv/metrics.csv`` in the run's folder, a row a step; it holds no samples.

    After a resume the rows of later steps are gone.
    """

    def __init__(self, config: None = None) -> None:
        super().__init__(config)

    def open(self, run_dir: Path, config: FitConfig, first_step: int) -> Any:
        """See :class:`LightningLogger`."""
        from lightning.pytorch.loggers import CSVLogger

        path = run_dir / "csv" / "metrics.csv"
        # Lightning deletes a table that it finds; a kill before the rows are back loses none.
        aside = path.with_name(".metrics-before.csv")
        rows = _set_aside(path, aside, first_step)
        logger = CSVLogger(run_dir, name="", version="csv", flush_logs_every_n_steps=1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Experiment logs directory .* not empty")
            logger.log_hyperparams(config.to_dict())
        for step, figures in rows:
            logger.log_metrics(figures, step=step)
        logger.save()
        aside.unlink(missing_ok=True)
        return logger


def _set_aside(path: Path, aside: Path, done: int) -> list[tuple[int, dict[str, float]]]:
    """Move the table out of the way; its rows of steps up to ``done``, whole ones only."""
    if path.is_file() and not aside.exists():
        path.replace(aside)
    if not aside.is_file():
        return []
    rows = []
    with aside.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            step = row.pop("step", None)
            whole = None not in row and None not in row.values()
            if step and step.isdecimal() and whole and int(step) <= done:
                rows.append((int(step), {name: float(v) for name, v in row.items() if v}))
    return rows


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    columns, cells = table(rows)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in cells]
    return "\n".join(lines)


def _escaped(value: Cell) -> str:
    if value is None:
        return ""
    text = html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))
    return text.replace("|", "&#124;").replace("\n", "<br>")
