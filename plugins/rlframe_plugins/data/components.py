"""The kinds of data sets that rlframe reads."""

from __future__ import annotations

from rlframe import Component

__all__ = ["DATASETS"]

DATASETS = (
    Component(
        "dataset",
        "jsonl",
        "rlframe_plugins.data.jsonl:JsonlDataset",
        summary="jsonl:PATH, one JSON object a line",
    ),
    Component(
        "dataset",
        "csv",
        "rlframe_plugins.data.csv:CsvDataset",
        summary="csv:PATH, a table as text with names in its first line",
    ),
    Component(
        "dataset",
        "tsv",
        "rlframe_plugins.data.csv:CsvDataset",
        summary="tsv:PATH, csv with tabs",
    ),
    Component(
        "dataset",
        "parquet",
        "rlframe_plugins.data.parquet:ParquetDataset",
        requires=("pyarrow",),
        extra="parquet",
        summary="parquet:PATH, a file, a folder or a pattern",
    ),
    Component(
        "dataset",
        "hf",
        "rlframe_plugins.data.hf:HuggingFaceDataset",
        requires=("datasets",),
        extra="datasets",
        summary="hf:NAME_OR_PATH?split=.., what the datasets library loads",
    ),
    Component(
        "dataset",
        "reasoning_gym",
        "rlframe_plugins.data.reasoning_gym:ReasoningGymDataset",
        requires=("reasoning_gym",),
        extra="reasoning-gym",
        summary="reasoning_gym:TASK?size=.., tasks with verifiers",
    ),
    Component(
        "dataset",
        "verifiers",
        "rlframe_plugins.data.verifiers:VerifiersDataset",
        requires=("verifiers",),
        extra="verifiers",
        summary="verifiers:TASKSET?size=.., tasks for the environment of that name",
    ),
    Component(
        "dataset",
        "builtin",
        "rlframe_plugins.data.builtin:BuiltinDataset",
        summary="builtin:arithmetic, made without files",
    ),
)
