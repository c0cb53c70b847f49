"""Optimiser and schedule over plain local tensors, by name, so that snapshots can cut them.

Steps are optimiser steps. Weights of low precision are updated through float32 copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlframe.errors import ConfigError

if TYPE_CHECKING:
    from rlframe.config import OptimConfig

__all__ = ["Optimiser", "decay_groups", "lr_ratio", "squared_norm"]

_BLOCK = 4096


def lr_ratio(step: int, total: int, config: OptimConfig) -> float:
    """Share of ``config.lr`` at optimiser step ``step`` (from 0) of ``total``.

    Rises linearly to 1 at step ``warmup_steps - 1``; the last step (``total - 1``) is the end of
    the schedule, ``min_lr_ratio``, and so is everything beyond.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    span = total - 1 - config.warmup_steps
    done = min(1.0, (step - config.warmup_steps) / span) if span > 0 else 1.0
    shape = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * shape


def squared_norm(tensor: Tensor) -> Tensor:
    """Sum of squares () float64, exact to float32's rounding inside blocks of 4096 elements."""
    flat = tensor.detach().reshape(-1)
    whole = flat.numel() // _BLOCK * _BLOCK
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, _BLOCK), dim=1, dtype=torch.float32)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    total: Tensor = norms.double().square().sum() + rest.double().square()
    return total


def decay_groups(
    weights: Mapping[str, Tensor], decays: set[str], weight_decay: float
) -> list[dict[str, Any]]:
    """torch's parameter groups: those that ``decays`` names with weight decay, the rest without."""
    groups: list[dict[str, Any]] = [
        {
            "params": [w for n, w in weights.items() if (n in decays) is decayed],
            "weight_decay": weight_decay if decayed else 0.0,
        }
        for decayed in (True, False)
    ]
    return [group for group in groups if group["params"]]


def _is_low(weight: Tensor) -> bool:
    return weight.dtype in (torch.bfloat16, torch.float16)


class Optimiser:
    """AdamW or SGD with a schedule.

    ``weights`` are the tensors to update in place; ``decays`` names those with weight decay (not
    norms, biases and other 1-D parameters). State by kind and name: ``exp_avg``, ``exp_avg_sq``,
    ``master``.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], decays: set[str], config: OptimConfig, total: int
    ) -> None:
        if config.schedule != "constant" and total < 1:
            raise ConfigError(f"optim.schedule={config.schedule} needs the number of steps")
        self.config = config
        self.total = total
        self.steps = 0
        self._decays = decays
        self.masters = {n: w.detach().float() for n, w in weights.items() if _is_low(w)}
        self._bind(weights)

    def _bind(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = dict(weights)
        self._updated = {name: self.masters.get(name, w) for name, w in self.weights.items()}
        self._optimiser = self._make()

    def move(self, weights: Mapping[str, Tensor]) -> None:
        """Go on with weights that lie elsewhere now; the state follows them."""
        entries = {name: dict(self._optimiser.state[w]) for name, w in self._updated.items()}
        self.masters = {name: m.to(weights[name].device) for name, m in self.masters.items()}
        self._bind(weights)
        for name, entry in entries.items():
            if entry:
                weight = self._updated[name]
                moved = {key: value.to(weight.device) for key, value in entry.items()}
                self._optimiser.state[weight] = moved

    def _make(self) -> torch.optim.Optimizer:
        config = self.config
        full = {n: w for n, w in self._updated.items() if w.numel()}
        groups = decay_groups(full, self._decays, config.weight_decay)
        if config.name == "sgd":
            return torch.optim.SGD(groups, lr=config.lr, fused=True)
        return torch.optim.AdamW(
            groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True
        )

    @property
    def learning_rate(self) -> float:
        """The rate of the next step."""
        return self.config.lr * lr_ratio(self.steps, self.total, self.config)

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Update the weights; one without a gradient stays as it is."""
        for group in self._optimiser.param_groups:
            group["lr"] = self.learning_rate
        for name, weight in self._updated.items():
            gradient = gradients.get(name)
            weight.grad = None if gradient is None else gradient.to(weight.dtype)
        self._optimiser.step()
        for weight in self._updated.values():
            weight.grad = None
        for name, master in self.masters.items():
            self.weights[name].copy_(master)
        self.steps += 1

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of the state by kind and name; zeros where a weight was never updated."""
        kinds: dict[str, dict[str, Tensor]] = {}
        if self.masters:
            kinds["master"] = dict(self.masters)
        if self.config.name == "sgd":
            return kinds
        for kind in ("exp_avg", "exp_avg_sq"):
            kinds[kind] = {name: self._entry(w)[kind] for name, w in self._updated.items()}
        return kinds

    def _entry(self, weight: Tensor) -> dict[str, Tensor]:
        """AdamW's own state of a weight, made now where its first step is still to come."""
        entry: dict[str, Tensor] = self._optimiser.state[weight]
        if not entry:
            entry["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
            entry["exp_avg"] = torch.zeros_like(weight)
            entry["exp_avg_sq"] = torch.zeros_like(weight)
        return entry

    def counts(self) -> dict[str, int]:
        """Updates that each weight has had (fewer than ``steps`` for an unused one)."""
        if self.config.name == "sgd":
            return {}
        return {name: int(self._entry(w)["step"]) for name, w in self._updated.items()}

    def restore(self, steps: int, counts: Mapping[str, int]) -> None:
        """Set the counters; the tensors of :meth:`state` are written in place."""
        self.steps = steps
        for name, count in counts.items():
            if name in self._updated and self.config.name != "sgd":
                self._entry(self._updated[name])["step"].fill_(count)
