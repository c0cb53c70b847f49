"""The loggers that rlframe ships."""

from __future__ import annotations

from rlframe import Component

__all__ = ["LOGGERS"]

LOGGERS = (
    Component(
        "logger",
        "terminal",
        "rlframe_plugins.loggers.terminal:TerminalLogger",
        summary="live view in a terminal, plain lines elsewhere",
    ),
    Component(
        "logger",
        "jsonl",
        "rlframe_plugins.loggers.jsonl:JsonlLogger",
        summary="metrics.jsonl in the run's folder",
    ),
    Component(
        "logger",
        "tensorboard",
        "rlframe_plugins.loggers.lightning_files:TensorBoardLogger",
        requires=("lightning", "tensorboard"),
        extra="tensorboard",
        summary="TensorBoard events in the run's folder",
    ),
    Component(
        "logger",
        "csv",
        "rlframe_plugins.loggers.lightning_files:CSVLogger",
        requires=("lightning",),
        extra="lightning",
        summary="csv/metrics.csv in the run's folder",
    ),
    Component(
        "logger",
        "wandb",
        "rlframe_plugins.loggers.lightning_services:WandbLogger",
        requires=("lightning", "wandb"),
        extra="wandb",
        summary="Weights & Biases, also offline",
    ),
    Component(
        "logger",
        "mlflow",
        "rlframe_plugins.loggers.lightning_services:MLflowLogger",
        requires=("lightning", "mlflow"),
        extra="mlflow",
        summary="MLflow, by default a database in the run's folder",
    ),
)
