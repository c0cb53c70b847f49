"""rlframe's schedule and snapshots over the optimiser inside DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlframe_strategies.optim import Optimiser, decay_groups

if TYPE_CHECKING:
    from rlframe.config import OptimConfig
    from rlframe_strategies.deepspeed_zero import Zero

__all__ = ["ZeroOptimiser", "make_base"]


def make_base(
    weights: Mapping[str, nn.Parameter], decays: set[str], config: OptimConfig, *, cpu_adam: bool
) -> torch.optim.Optimizer:
    """What DeepSpeed wraps; ``cpu_adam``: its AdamW for tensors in host memory."""
    groups = decay_groups(weights, decays, config.weight_decay)
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr)
    adam: Any = torch.optim.AdamW
    options: dict[str, Any] = {"fused": True}
    if cpu_adam:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        adam, options = DeepSpeedCPUAdam, {}
    made: torch.optim.Optimizer = adam(
        groups, lr=config.lr, betas=config.betas, eps=config.eps, **options
    )
    return made


class ZeroOptimiser(Optimiser):
    """An optimiser whose tensors are DeepSpeed's flat ones."""

    def __init__(self, zero: Zero, config: OptimConfig, total: int) -> None:
        self._zero = zero
        super().__init__({}, set(), config, total)

    def _make(self) -> torch.optim.Optimizer:
        return self._zero.base

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Update with the gradients that DeepSpeed holds, of which ``gradients`` are views."""
        self._zero.step(self.learning_rate)
        self.steps += 1

    def move(self, weights: Mapping[str, Tensor]) -> None:
        """Move state and float32 copies to where the weights are now, or were before."""
        device = next(iter(weights.values())).device
        self.move_to(device)

    def move_to(self, device: torch.device) -> None:
        """Move the state, and the float32 copies where the weights are not float32."""
        for flat in self._zero.flats:
            for value in self._optimiser.state[flat].values():
                if isinstance(value, Tensor) and value.numel() > 1:
                    value.data = value.data.to(device)
            if self._zero.low:
                flat.data = flat.data.to(device)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """See :class:`Optimiser`; by the keys of :meth:`Zero.layout`."""
        flats = self._zero.flats
        kinds = {}
        if self._zero.low:
            kinds["master"] = self._zero.buffers([flat.detach() for flat in flats])
        if self.config.name == "sgd":
            return kinds
        for kind in ("exp_avg", "exp_avg_sq"):
            kinds[kind] = self._zero.buffers([self._entry(flat)[kind] for flat in flats])
        return kinds

    def _entry(self, weight: Tensor) -> dict[str, Any]:
        entry: dict[str, Any] = self._optimiser.state[weight]
        if not entry and not isinstance(self._optimiser, torch.optim.AdamW):
            entry["step"] = 0
            entry["exp_avg"] = torch.zeros_like(weight.detach())
            entry["exp_avg_sq"] = torch.zeros_like(weight.detach())
        return super()._entry(weight)

    def counts(self) -> dict[str, int]:
        """Updates of each weight: those of the flat tensor that it lies in."""
        if self.config.name == "sgd":
            return {}
        pairs = zip(self._zero.flats, self._zero.owners(), strict=True)
        return {name: int(self._entry(flat)["step"]) for flat, names in pairs for name in names}

    def restore(self, steps: int, counts: Mapping[str, int]) -> None:
        """See :class:`Optimiser`; a flat tensor takes the highest count of what lies in it."""
        self.steps = steps
        if not self._zero.low:
            self._zero.refresh()
        if self.config.name == "sgd":
            return
        for flat, names in zip(self._zero.flats, self._zero.owners(), strict=True):
            entry = self._entry(flat)
            count = max(counts[name] for name in names)
            if isinstance(entry["step"], Tensor):
                entry["step"].fill_(count)
            else:
                entry["step"] = count
