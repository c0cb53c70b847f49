"""Where advantages are computed: on the controller from per-row columns, else on the ranks."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlframe.algorithm import Algorithm
from rlframe.batch import Batch
from rlframe.errors import BatchError
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.packed import Packed

__all__ = ["add_advantages", "checked_columns"]


def add_advantages(algorithm: Algorithm, batch: Batch, policy: WorkerGroup) -> Batch:
    """The batch with what ``Algorithm.advantages`` gives.

    Where every column that it reads is per row, it runs here and no token-level data moves;
    otherwise on the policy's data-parallel ranks, each group whole on one rank.
    """
    ragged = [name for name in algorithm.reads if batch.schema[name].axis is not None]
    if ragged:
        return batch.add_handles(policy.call("advantages", batch).result())
    return batch.add(checked_columns(algorithm, batch))


def checked_columns(algorithm: Algorithm, batch: Batch) -> dict[str, Packed]:
    """``Algorithm.advantages`` on ``reads`` alone, (B,) values spread over the response tokens.

    Raises BatchError for values that are not tensors, or not (B,) or (B, R), or not finite.
    """
    missing = [name for name in algorithm.reads if name not in batch]
    if missing:
        raise BatchError(
            f"{type(algorithm).__name__} reads column '{missing[0]}', which no role, reward or "
            f"dataset wrote. Columns: {', '.join(batch.columns)}"
        )
    made = algorithm.advantages(batch.select(algorithm.reads))
    lengths = batch.lengths("response_ids")
    return {name: _packed(name, value, lengths, batch) for name, value in made.items()}


def _packed(name: str, value: Tensor, lengths: NDArray[np.int64], batch: Batch) -> Packed:
    if not isinstance(value, Tensor) or value.shape[:1] != (len(batch),):
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise BatchError(f"advantages() returned '{name}' of {shape} for {len(batch)} rows")
    column = batch.schema.get(name)
    dtype = column.dtype if column else "float32"
    dense = value.detach().to(getattr(torch, dtype)).numpy()
    if column is None or column.axis is None:
        return Packed(dense)
    if dense.ndim == 1:
        return Packed(np.repeat(dense, lengths), lengths)
    return Packed.from_padded(dense, lengths)
