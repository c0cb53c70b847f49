"""Gradients summed over ranks in buckets, while the backward pass still makes the next ones.

Every rank sums every bucket, in one order, whatever its own pass used: no rank waits for another
that had no rows or no gradient. Nothing is averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["GradientSum"]


@dataclass
class _Bucket:
    """Parameters whose gradients travel together; behind them a flag each: has one."""

    names: list[str] = field(default_factory=list)
    parameters: list[nn.Parameter] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    size: int = 0
    flat: Tensor | None = None
    filled: list[bool] = field(default_factory=list)
    missing: int = 0
    work: Any = None

    def add(self, name: str, parameter: nn.Parameter) -> None:
        """One more parameter."""
        self.names.append(name)
        self.parameters.append(parameter)
        self.starts.append(self.size)
        self.size += parameter.numel()
        self.filled.append(False)

    def view(self, slot: int) -> Tensor:
        """The place of one parameter's gradient."""
        assert self.flat is not None
        start, parameter = self.starts[slot], self.parameters[slot]
        return self.flat[start : start + parameter.numel()].view(parameter.shape)

    @property
    def flags(self) -> Tensor:
        """How many ranks had a gradient, a number a parameter, in the type of the gradients."""
        assert self.flat is not None
        return self.flat[self.size :]


class GradientSum:
    """The gradients of one optimiser step of replicated parameters.

    ``bucket_bytes`` is the size from which a bucket is full; ``dtype`` the type in which sums are
    made, None: the parameters' own. Parameters get their gradients last to first, and buckets are
    filled in that order. Made on every rank alike.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        rank: int,
        bucket_bytes: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._first = rank == 0
        self._dtype = dtype
        self._buckets: list[_Bucket] = []
        self._armed = self._summed = False
        self._next = 0
        for name, parameter in reversed(list(parameters.items())):
            if not parameter.requires_grad:
                continue
            self._place(name, parameter, bucket_bytes)

    def _place(self, name: str, parameter: nn.Parameter, limit: int) -> None:
        last = self._buckets[-1] if self._buckets else None
        kind = self._dtype or parameter.dtype
        if last is None or last.size * kind.itemsize >= limit or self._kind(last) != kind:
            last = _Bucket()
            self._buckets.append(last)
        hook = partial(self._arrived, last, len(last.names))
        last.add(name, parameter)
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def _kind(self, bucket: _Bucket) -> torch.dtype:
        return self._dtype or bucket.parameters[0].dtype

    # --- a step -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before micro-batches; where a sum is there already, the first rank goes on with it."""
        if self._summed:
            self._carry()
        self._next = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.names)

    @contextmanager
    def last_pass(self) -> Iterator[None]:
        """The last backward pass: buckets are summed as they are complete, the others after it."""
        self._armed = True
        try:
            yield
        finally:
            self._armed = False
        for bucket in self._buckets[self._next :]:
            self._send(bucket)
        self._next = len(self._buckets)
        self._summed = True

    def gradients(self) -> dict[str, Tensor]:
        """The sums by name; a parameter that had no gradient on any rank is left out."""
        if not self._summed:
            return {}
        self._wait()
        has = torch.cat([bucket.flags.float() for bucket in self._buckets]).tolist()
        slots = [(bucket, slot) for bucket in self._buckets for slot in range(len(bucket.names))]
        return {
            bucket.names[slot]: bucket.view(slot)
            for (bucket, slot), count in zip(slots, has, strict=True)
            if count
        }

    def clear(self) -> None:
        """Give the storage back."""
        self._wait()
        self._summed = False
        for bucket in self._buckets:
            bucket.flat = None
            bucket.filled = [False] * len(bucket.names)

    # --- inside -------------------------------------------------------------------------------

    def _arrived(self, bucket: _Bucket, slot: int, parameter: Tensor) -> None:
        """After a parameter's gradient of one backward pass was added up."""
        if not self._armed:
            return
        self._take(bucket, slot)
        bucket.missing -= 1
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._send(self._buckets[self._next])
            self._next += 1

    @torch.no_grad()
    def _take(self, bucket: _Bucket, slot: int) -> None:
        """Move a gradient into its bucket."""
        parameter = bucket.parameters[slot]
        assert parameter.grad is not None
        if bucket.flat is None:
            bucket.flat = torch.empty(
                bucket.size + len(bucket.names),
                dtype=self._kind(bucket),
                device=parameter.device,
            )
        if bucket.filled[slot]:
            bucket.view(slot).add_(parameter.grad)
        else:
            bucket.view(slot).copy_(parameter.grad)
        bucket.filled[slot] = True
        parameter.grad = None

    @torch.no_grad()
    def _send(self, bucket: _Bucket) -> None:
        from torch import distributed as dist

        assert bucket.work is None, "a gradient came after its bucket was sent"
        for slot, parameter in enumerate(bucket.parameters):
            if parameter.grad is not None:
                self._take(bucket, slot)
        if bucket.flat is None:
            bucket.flat = torch.zeros(
                bucket.size + len(bucket.names),
                dtype=self._kind(bucket),
                device=bucket.parameters[0].device,
            )
        for slot, filled in enumerate(bucket.filled):
            if not filled:
                bucket.view(slot).zero_()
        bucket.flags.copy_(torch.tensor(bucket.filled, dtype=bucket.flat.dtype))
        bucket.work = dist.all_reduce(bucket.flat, async_op=True)

    def _wait(self) -> None:
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()
                bucket.work = None

    def _carry(self) -> None:
        """Count the sum of earlier calls once: it stays on the first rank alone."""
        self._wait()
        for bucket in self._buckets:
            has = bucket.flags.tolist()
            bucket.filled = [self._first and count > 0 for count in has]
        self._summed = False
