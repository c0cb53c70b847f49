"""A plain float64 model whose weights are ``W + scale * up @ down``; only the two are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe.testing.strategy_reference import Reference
from rlframe.testing.strategy_runs import CLIP, LR, summed_loss

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output
    from rlframe.weights.adapters import Adapters

__all__ = ["AdapterReference"]


@dataclass
class AdapterReference:
    """Adapters by name, taken from the strategy under test, and the model that they change.

    Their gradients come from the whole weight's by the chain rule: with ``g`` that of the weight,
    ``scale * up.T @ g`` is that of ``down`` and ``scale * g @ down.T`` that of ``up``.
    """

    adapters: Adapters
    tensors: dict[str, Tensor]
    model: Reference
    base: dict[str, Tensor]

    @classmethod
    def of(
        cls,
        path: Path,
        kind: str,
        temperature: float,
        adapters: Adapters,
        start: Mapping[str, Tensor],
    ) -> AdapterReference:
        """A model of ``kind`` with the adapters ``start`` (float64 copies are made)."""
        model = Reference(path, kind, temperature)
        base = {name: p.detach().clone() for name, p in model.named_parameters().items()}
        return cls(adapters, {n: t.double() for n, t in start.items()}, model, base)

    def outputs(self, micro: TensorDict) -> Output:
        """See :meth:`Reference.outputs`."""
        self._merge()
        return self.model.outputs(micro)

    def weights(self) -> dict[str, Tensor]:
        """Effective weights by canonical name."""
        self._merge()
        return {n: p.detach().clone() for n, p in self.model.named_parameters().items()}

    def step(self, micros: Sequence[TensorDict]) -> float:
        """One SGD step; the norm of the gradient of everything that is trained."""
        import torch

        self._merge()
        for micro in micros:
            summed_loss(self.model.outputs(micro), micro).backward()  # type: ignore[no-untyped-call]
        named = self.model.named_parameters()
        grads: list[tuple[Tensor, Tensor]] = []
        for name, pair in self.adapters.pairs.items():
            whole, scale = named[name].grad, self.adapters.scale
            assert whole is not None
            down, up = self.tensors[pair.down], self.tensors[pair.up]
            grads += [(down, scale * up.T @ whole), (up, scale * whole @ down.T)]
        heads = {n: self.base[n] for n in named if n.startswith("score.")}
        grads += [(tensor, named[n].grad) for n, tensor in heads.items()]  # type: ignore[misc]
        norm = float(torch.stack([g.square().sum() for _, g in grads]).sum().sqrt())
        clip = CLIP / norm if norm > CLIP else 1.0
        for tensor, gradient in grads:
            tensor -= LR * clip * gradient
        for parameter in named.values():
            parameter.grad = None
        return norm

    def _merge(self) -> None:
        import torch

        with torch.no_grad():
            for name, parameter in self.model.named_parameters().items():
                parameter.copy_(self.base[name])
                pair = self.adapters.pairs.get(name)
                if pair is not None:
                    product = self.tensors[pair.up] @ self.tensors[pair.down]
                    parameter += self.adapters.scale * product
