"""``summary.json``: what came out of a run, for people and scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlframe.errors import SnapshotError
from rlframe.recording.files import SUMMARY
from rlframe.snapshots.durable import replace_text

__all__ = ["FIELDS", "read_summary", "write_summary"]

FIELDS: dict[str, Any] = {
    "status": "running",
    "val_before": None,
    "val_after": None,
    "steps": 0,
    "wall_s": 0.0,
    "tokens_per_s": 0.0,
    "skipped": [],
    "restarts": [],
    "replicas": [],
}
"""What every summary has: ``val_*`` are mean rewards (or losses), None where nothing was measured;
``skipped`` lists skipped optimiser steps, ``restarts`` restarts, both with their reasons;
``replicas`` are lines about rollout replicas that were lost and came back."""


def write_summary(run_dir: str | Path, summary: Mapping[str, Any]) -> Path:
    """Write it whole or not at all; missing fields get their defaults, NaN becomes null."""
    path = Path(run_dir) / SUMMARY
    values = {**FIELDS, **{key: _finite(value) for key, value in summary.items()}}
    replace_text(path, json.dumps(values, indent=1, allow_nan=False) + "\n")
    return path


def read_summary(run_dir: str | Path) -> dict[str, Any]:
    """The summary of a run. Raises SnapshotError when it is missing or damaged."""
    path = Path(run_dir) / SUMMARY
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SnapshotError(f"{path} holds no object")
    return value


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
