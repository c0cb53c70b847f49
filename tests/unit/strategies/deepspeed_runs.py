"""Builds and runs of strategy deepspeed on several ranks; its package is imported before a fork."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlframe.config import ModelConfig, OptimConfig
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.dist import run_ranks
from rlframe_strategies.deepspeed import DeepSpeedStrategy
from rlframe_strategies.deepspeed_setup import CPU_ADAM, SHARED_MEMORY, import_deepspeed, load_op

import_deepspeed(torch.device("cpu"))
for _op in (SHARED_MEMORY, CPU_ADAM):
    load_op(_op)

SHARDED: dict[str, Any] = {"zero": 3, "persist_below": 0}
STAGES: list[dict[str, Any]] = [{"zero": 0}, {"zero": 1}, {"zero": 2}, SHARDED]
HOST: dict[str, Any] = {**SHARDED, "offload_optimizer": True, "offload_params": True}
NAMES = ["zero0", "zero1", "zero2", "zero3"]


def build(
    rank: RankInfo, path: Path, options: dict[str, Any], of: Any = DeepSpeedStrategy, **spec: Any
) -> Any:
    strategy = of(of.Config(**options), rank)
    dtype = spec.pop("dtype", "auto")
    optim = spec.pop("optim", OptimConfig(name="sgd", lr=0.05))
    model = ModelConfig(path=str(path), dtype=dtype)
    strategy.build(ModelSpec(str(path), model, optim=optim, optim_steps=9, **spec))
    return strategy


def ranks(function: Any, world: int, *args: Any) -> list[Any]:
    return run_ranks(function, world, *args, timeout_s=120)
