"""Loggers of Lightning for experiment trackers: Weights & Biases and MLflow.

Both keep the id of their run in the run's folder, so that a resumed run goes on in the same one.
Neither tracker can delete a point: steps that a killed run had logged after its last snapshot are
there twice, the resumed run's later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlframe import Config as FitConfig
from rlframe.snapshots.durable import replace_text
from rlframe_plugins.loggers.lightning import LightningLogger, remembered, table

__all__ = ["MLflowLogger", "WandbLogger"]

_ID = "rlframe-run-id"


class WandbLogger(LightningLogger):
    """Weights & Biases; samples are tables. Files lie in ``wandb/`` of the run's folder."""

    @dataclass(frozen=True)
    class Config:
        """Options of the Weights & Biases logger."""

        project: str = "rlframe"
        """Project that the run belongs to."""
        name: str = ""
        """Name of the run; empty takes that of the run's folder."""
        entity: str = ""
        """User or team; empty takes the account's own."""
        tags: tuple[str, ...] = ()
        """Tags of the run."""
        offline: bool = False
        """Write files only, for `wandb sync` later; needs no account."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            if not self.project:
                raise ValueError("project must have a name")

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    def open(self, run_dir: Path, config: FitConfig, first_step: int) -> Any:
        """See :class:`LightningLogger`."""
        from lightning.pytorch.loggers import WandbLogger

        options = self.config
        more: dict[str, Any] = {"tags": list(options.tags)}
        if options.entity:
            more["entity"] = options.entity
        if options.offline:
            # As an argument: Lightning's own option sets a variable that outlives this run.
            more["mode"] = "offline"
        logger = WandbLogger(
            project=options.project,
            name=options.name or run_dir.name,
            save_dir=run_dir,
            id=remembered(run_dir / "wandb" / _ID),
            **more,
        )
        logger.log_hyperparams(config.to_dict())
        return logger

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`Logger`."""
        if rows:
            columns, cells = table(rows)
            self._logger.log_table("samples", columns=columns, data=cells, step=step)

    def end(self, logger: Any, status: str) -> None:
        """See :class:`LightningLogger`."""
        super().end(logger, status)
        logger.experiment.finish(exit_code=1 if status.startswith("failed") else 0)


class MLflowLogger(LightningLogger):
    """MLflow, by default a database in ``mlflow/`` of the run's folder; samples are artifacts.

    See it with ``mlflow ui --backend-store-uri sqlite:///RUN/mlflow/mlflow.db``.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the MLflow logger."""

        experiment: str = "rlframe"
        """Experiment that the run belongs to."""
        name: str = ""
        """Name of the run; empty takes that of the run's folder."""
        tracking_uri: str = ""
        """Address of a tracking server; empty writes into the run's folder."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            if not self.experiment:
                raise ValueError("experiment must have a name")

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    def open(self, run_dir: Path, config: FitConfig, first_step: int) -> Any:
        """See :class:`LightningLogger`."""
        from lightning.pytorch.loggers import MLFlowLogger

        folder = (run_dir / "mlflow").resolve()
        folder.mkdir(exist_ok=True)
        local = not self.config.tracking_uri
        kept = folder / _ID
        known = kept.read_text(encoding="utf-8").strip() if kept.is_file() else None
        logger = MLFlowLogger(
            experiment_name=self.config.experiment,
            run_name=self.config.name or run_dir.name,
            tracking_uri=f"sqlite:///{folder}/mlflow.db" if local else self.config.tracking_uri,
            artifact_location=(folder / "artifacts").as_uri() if local else None,
            run_id=known,
        )
        run_id = str(logger.run_id)
        if known is None:
            replace_text(kept, run_id)
            # Of one run MLflow takes each option once: a resumed run may have other steps.
            logger.log_hyperparams(config.to_dict())
        else:
            logger.experiment.update_run(run_id, status="RUNNING")
        return logger

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`Logger`."""
        if not rows:
            return
        columns, cells = table(rows)
        client, run_id = self._logger.experiment, self._logger.run_id
        path = f"samples/step-{step:06d}.json"
        if path in {one.path for one in client.list_artifacts(run_id, "samples")}:
            # Written before a resume; log_table would add to it.
            client.log_dict(run_id, {"columns": columns, "data": cells}, path)
        else:
            data = {name: [row[i] for row in cells] for i, name in enumerate(columns)}
            client.log_table(run_id, data, path)

    def end(self, logger: Any, status: str) -> None:
        """See :class:`LightningLogger`."""
        ends = {"finished": "FINISHED", "stopped": "KILLED"}
        logger.finalize(ends.get(status.partition(":")[0], "FAILED"))
