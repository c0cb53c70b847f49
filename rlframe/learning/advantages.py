"""Where advantages are computed: on the controller from per-row columns, else on the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlframe.algorithm import Algorithm
from rlframe.asking import ask_mapping
from rlframe.batching.batch import Batch
from rlframe.batching.pack_columns import column_of
from rlframe.batching.packed import Packed
from rlframe.errors import BatchError
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.learning.correction import corrected_mask, correction_reads, with_old_logprobs

__all__ = ["add_advantages", "checked_columns", "columns_read"]


def add_advantages(algorithm: Algorithm, batch: Batch, policy: WorkerGroup) -> Batch:
    """The batch with what ``Algorithm.advantages`` gives.

    Where every column that it reads is per row, it runs here and no token-level data moves: one
    value a row travels with the handle, and whoever reads the column spreads it over the response.
    Otherwise it runs on the policy's data-parallel ranks, each group whole on one rank.
    """
    names = [*columns_read(algorithm), *_also_there(algorithm, batch)]
    ragged = [name for name in names if column_of(batch.schema, name).axis is not None]
    if ragged:
        return batch.add_handles(policy.call("advantages", batch).result())
    made = _made(algorithm, batch)
    dense = {name: value for name, value in made.items() if value.lengths is not None}
    carried = {name: value.values for name, value in made.items() if value.lengths is None}
    for name in carried:
        column_of(batch.schema, name)
    return batch.add(dense).carry(carried)


def checked_columns(algorithm: Algorithm, batch: Batch) -> dict[str, Packed]:
    """``Algorithm.advantages`` on what it reads, (B,) values spread over the response tokens.

    Raises BatchError for values that are not tensors, not of the column's shape, or not finite in
    a slot that is trained on; TrainingError for what the algorithm raises.
    """
    lengths = batch.lengths("response_ids")

    def spread(name: str, packed: Packed) -> Packed:
        column = batch.schema.get(name)
        if packed.lengths is not None or column is None or column.axis is None:
            return packed
        return Packed(np.repeat(packed.values, lengths), lengths)

    return {name: spread(name, packed) for name, packed in _made(algorithm, batch).items()}


def _made(algorithm: Algorithm, batch: Batch) -> dict[str, Packed]:
    """What the algorithm gives, checked; without lengths where that is one value a row."""
    options = algorithm.config
    batch = with_old_logprobs(options, batch)
    missing = [name for name in columns_read(algorithm) if name not in batch]
    if missing:
        raise BatchError(
            f"{type(algorithm).__name__} reads column '{missing[0]}', which no role, reward or "
            f"dataset wrote. Columns: {', '.join(batch.columns)}"
        )
    read = batch.select([*algorithm.reads, *_also_there(algorithm, batch)])
    made = ask_mapping(algorithm, "advantages", read)
    if options.rollout_correction == "mask":
        kept = corrected_mask(options, batch)
        own = made.get("loss_mask", kept)
        made["loss_mask"] = kept & (own[:, None] if own.dim() == 1 else own)
    if options.bypasses:
        made["old_logprobs"] = batch["old_logprobs"]
    lengths = batch.lengths("response_ids")
    return {name: _packed(name, value, lengths, batch) for name, value in made.items()}


def columns_read(algorithm: Algorithm) -> tuple[str, ...]:
    """What must be there before the update: for the advantages and the rollout correction."""
    return tuple(dict.fromkeys((*algorithm.reads, *correction_reads(algorithm.config))))


def _also_there(algorithm: Algorithm, batch: Batch) -> list[str]:
    return [name for name in algorithm.reads_if_there if name in batch]


def _packed(name: str, value: Tensor, lengths: NDArray[np.int64], batch: Batch) -> Packed:
    if not isinstance(value, Tensor) or value.shape[:1] != (len(batch),):
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise BatchError(f"advantages() returned '{name}' of {shape} for {len(batch)} rows")
    column = batch.schema.get(name)
    dtype = column.dtype if column else "float32"
    dense = value.detach().cpu().to(getattr(torch, dtype)).numpy()
    if column is None or column.axis is None:
        return Packed(dense)
    widest = int(lengths.max(initial=0))
    if dense.ndim != 1 and dense.shape != (len(batch), widest):
        raise BatchError(
            f"advantages() returned '{name}' of {dense.shape}: return ({len(batch)},) or "
            f"({len(batch)}, {widest}), the longest response"
        )
    if dense.ndim == 1:
        _check_finite(name, dense, _trained_rows(batch), batch)
        return Packed(dense)
    packed = Packed.from_padded(dense, lengths)
    _check_finite(name, packed.values, _trained_tokens(batch), batch)
    return packed


def _trained_rows(batch: Batch) -> NDArray[np.bool_]:
    """Rows (B,) with a token that the policy sampled and that is trained on."""
    if "train" not in batch or "response_tokens" not in batch:
        return np.zeros(len(batch), bool)
    return np.asarray(batch["train"] & (batch["response_tokens"] > 0), bool)


def _trained_tokens(batch: Batch) -> NDArray[np.bool_]:
    """The same for the response tokens of every row, side by side."""
    if "response_mask" not in batch:
        return np.zeros(int(batch.lengths("response_ids").sum()), bool)
    rows = np.repeat(_trained_rows(batch), batch.lengths("response_ids"))
    inside: NDArray[np.bool_] = batch.packed("response_mask").values.astype(bool)
    return rows & inside


def _check_finite(
    name: str, values: NDArray[Any], trained: NDArray[np.bool_], batch: Batch
) -> None:
    wrong = np.flatnonzero(trained & ~np.isfinite(values))
    if not len(wrong):
        return
    row = int(wrong[0])
    if len(values) != len(batch):
        row = int(np.searchsorted(np.cumsum(batch.lengths("response_ids")), row, side="right"))
    group = int(batch["group_ids"][row]) if "group_ids" in batch else row
    raise BatchError(
        f"advantages() returned '{name}' with {values[wrong[0]]} for row {row} (group {group}), "
        f"{len(wrong)} such values in all: they would be trained on"
    )
