"""A batch as a TensorDict of padded tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlframe.batching.columns import Schema
from rlframe.batching.pack_columns import LENGTH_OF, column_of
from rlframe.batching.packed import Packed

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlframe.batching.batch import Batch

__all__ = ["columns_of", "tensordict_of"]

_LENGTHS = {"P": "prompt_lengths", "R": "response_lengths"}


def tensordict_of(batch: Batch, names: Sequence[str]) -> TensorDict:
    """Padded tensors of the numeric ones among ``names``, lengths (B,) and scalars (B,)."""
    from tensordict import TensorDict

    chosen = [name for name in names if column_of(batch.schema, name).dtype != "object"]
    out: dict[str, Any] = {name: batch[name] for name in chosen}
    for axis, source in LENGTH_OF.items():
        if source in batch:
            out[_LENGTHS[axis]] = torch.from_numpy(batch.lengths(source))
    if batch.scalars:
        out["scalars"] = {n: torch.full((len(batch),), v) for n, v in batch.scalars.items()}
    return TensorDict(out, batch_size=[len(batch)])


def columns_of(data: TensorDict, schema: Schema) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Columns, packed by the lengths that are there, and scalars."""
    columns: dict[str, Any] = {}
    for name in data.keys():  # noqa: SIM118 - a TensorDict iterates over rows
        if name in (*_LENGTHS.values(), "scalars"):
            continue
        column = column_of(schema, name)
        lengths = data.get(_LENGTHS.get(column.axis or "", ""), None)
        columns[name] = data[name]
        if lengths is not None:
            dense = data[name].detach().cpu().numpy()
            left = column.axis == "P"
            columns[name] = Packed.from_padded(dense, lengths.cpu().numpy(), left=left)
    scalars = data.get("scalars", None)
    if scalars is None or not len(data):
        return columns, {}
    return columns, {name: float(values[0]) for name, values in scalars.items()}
