"""What DeepSpeed's ZeRO optimisers (arXiv 1910.02054) keep where: the one reader of their tables.

Stages 1 and 2 lay the parameters of an optimiser group into one flat buffer and give every rank an
equal run of its float32 copy and state. Stage 3 cuts each parameter into equal runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlframe.weights.layout import Layout, LocalView, ParamInfo, Piece
from rlframe.weights.sharding import flat_layout, flat_pieces

__all__ = ["Zero", "ZeroFlat", "ZeroSharded"]


class Zero(ABC):
    """One engine's optimiser, seen as flat float32 tensors with gradients and state.

    ``names`` are the canonical names of the module's parameters, ``params`` their whole shapes.
    """

    def __init__(
        self, engine: Any, names: Mapping[nn.Parameter, str], params: Mapping[str, ParamInfo]
    ) -> None:
        self._engine, self._names, self._params = engine, names, params
        self._inner = engine.optimizer
        self.base: torch.optim.Optimizer = engine.optimizer.optimizer
        self.low = any(info.dtype != "float32" for info in params.values())

    @property
    @abstractmethod
    def flats(self) -> list[Tensor]:
        """The float32 tensors of this rank that the inner optimiser updates, each flat."""

    @abstractmethod
    def owners(self) -> list[list[str]]:
        """Which parameters lie in each of :attr:`flats`."""

    @abstractmethod
    def buffers(self, flats: Sequence[Tensor]) -> dict[str, Tensor]:
        """Tensors that lie like :attr:`flats`, by the keys of :meth:`layout`."""

    @abstractmethod
    def layout(self) -> Layout:
        """Where the elements of :attr:`flats` lie; each rank knows the whole layout."""

    def gradients(self) -> dict[str, Tensor]:
        """This rank's disjoint part of the gradient, averaged over the ranks; ends a step's sums.

        They are what :meth:`step` uses, so that a change in place counts.
        """
        self._engine.set_gradient_accumulation_boundary(True)
        if self._engine.zero_optimization_partition_gradients():
            self._inner.finalize_gradient_accumulation_boundary()
        else:
            self._engine.allreduce_gradients()
        if self._offloads:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return {str(i): flat.grad for i, flat in enumerate(self.flats) if flat.grad is not None}
        groups = self._inner.averaged_gradients
        return {f"{i}/{j}": t for i, group in groups.items() for j, t in enumerate(group)}

    def step(self, learning_rate: float) -> None:
        """Update the flat tensors, and the weights from them."""
        for group in self.base.param_groups:
            group["lr"] = learning_rate
        self._inner.step()
        assert not self._inner.overflow, "DeepSpeed skipped a step with a finite gradient norm"

    def drop(self) -> None:
        """Let DeepSpeed see that the gradients are not finite, for which it forgets them."""
        self._inner.step()
        assert self._inner.overflow, "DeepSpeed did a step with a gradient norm that is not finite"

    def clear(self) -> None:
        """Forget every gradient; what a parameter without one would get is zero, not an old one."""
        self._inner.zero_grad()
        if self._offloads:
            for flat in self.flats:
                if flat.grad is not None:
                    flat.grad.zero_()
        self._engine.set_gradient_accumulation_boundary(False)

    def refresh(self) -> None:
        """Take the flat float32 tensors from the weights, after these were loaded."""
        self._inner.refresh_fp32_params()

    @property
    @abstractmethod
    def _offloads(self) -> bool: ...


class ZeroFlat(Zero):
    """Stages 1 and 2: a run of each group's flat buffer."""

    @property
    def flats(self) -> list[Tensor]:
        """See :class:`Zero`; one a group."""
        return list(self._inner.single_partition_of_fp32_groups)

    def owners(self) -> list[list[str]]:
        """See :class:`Zero`; all of the group, whatever this rank has of them."""
        return [[self._names[p] for p in group] for group in self._inner.bit16_groups]

    def buffers(self, flats: Sequence[Tensor]) -> dict[str, Tensor]:
        """See :class:`Zero`."""
        return {f"group.{i}": flat for i, flat in enumerate(flats)}

    def layout(self) -> Layout:
        """Of each parameter what falls into a rank's run of its group."""
        from deepspeed import comm

        return Layout(self._params, tuple(self._rank(r) for r in range(comm.get_world_size())))

    def _rank(self, rank: int) -> tuple[Piece, ...]:
        pieces: list[Piece] = []
        inner = self._inner
        for i, params in enumerate(inner.round_robin_bit16_groups):
            size = inner.partition_size[i]
            for parameter, at in zip(params, inner.round_robin_bit16_offsets[i], strict=True):
                start = max(at, rank * size)
                end = min(at + parameter.numel(), (rank + 1) * size)
                if start < end:
                    name = self._names[parameter]
                    view = LocalView(f"group.{i}", start - rank * size, ())
                    span = (start - at, end - at)
                    pieces += flat_pieces(name, self._params[name], span, view)
        return tuple(pieces)

    @property
    def _offloads(self) -> bool:
        return bool(self._inner.cpu_offload)


class ZeroSharded(Zero):
    """Stage 3: of each parameter the rank's run, padded to the same length on all ranks."""

    @property
    def flats(self) -> list[Tensor]:
        """See :class:`Zero`; one a sub-group of parameters."""
        return list(self._inner.fp32_partitioned_groups_flat)

    def owners(self) -> list[list[str]]:
        """See :class:`Zero`."""
        return [[self._names[p] for p in group] for group in self._inner.fp16_groups]

    def buffers(self, flats: Sequence[Tensor]) -> dict[str, Tensor]:
        """See :class:`Zero`; keys are names, as in the layout of the weights."""
        found = {}
        for group in self._inner.fp16_groups:
            for parameter in group:
                i, start, size = self._inner.grad_position[self._inner.get_param_id(parameter)]
                found[self._names[parameter]] = flats[i].narrow(0, start, size)
        return found

    def layout(self) -> Layout:
        """That of the weights."""
        from deepspeed import comm

        return flat_layout(self._params, comm.get_world_size())

    def clear(self) -> None:
        """See :class:`Zero`."""
        super().clear()
        self._inner.grad_partitions_flat_buffer.zero_()

    @property
    def _offloads(self) -> bool:
        return bool(self._inner.offload_optimizer)
