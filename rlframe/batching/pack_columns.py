"""From what a stage hands in to packed columns, checked against their declarations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlframe.batching.columns import Column, Schema
from rlframe.batching.packed import Packed
from rlframe.errors import BatchError, unknown_name

__all__ = ["LENGTH_OF", "column_of", "empty_column", "pack_columns"]

LENGTH_OF = {"P": "prompt_ids", "R": "response_ids"}
"""The column whose row lengths every other column of that axis has."""

Lengths = NDArray[np.int64]


def column_of(schema: Schema, name: str) -> Column:
    """The declaration of a column. Raises BatchError for an unknown one."""
    if name not in schema:
        raise BatchError(unknown_name("column", name, schema))
    return schema[name]


def empty_column(column: Column) -> Packed:
    """A column of no rows."""
    values = np.zeros((0,) if column.axis or column.shape == "B" else (0, 0), column.dtype)
    return Packed(values, np.zeros(0, np.int64) if column.axis else None)


def pack_columns(
    columns: Mapping[str, Any],
    schema: Schema,
    size: int,
    known: Callable[[str], Lengths | None],
) -> dict[str, Packed]:
    """Check and pack columns of ``size`` rows.

    ``known(axis)`` gives the row lengths (B,) that an axis has already, or None; columns handed in
    together agree on theirs, whatever their order. Padded data is cut to the lengths.

    Raises BatchError for unknown columns and wrong sizes, shapes, dtypes or row lengths.
    """
    lengths: dict[str, Lengths] = {}
    out: dict[str, Packed] = {}

    def lengths_of(axis: str) -> Lengths | None:
        if axis in lengths:
            return lengths[axis]
        if axis == "S":
            prompt, response = lengths_of("P"), lengths_of("R")
            return None if prompt is None or response is None else prompt + response
        return known(axis)

    def rank(name: str) -> tuple[bool, bool]:
        """Columns that give an axis its lengths come first, then those that know their own."""
        return name not in LENGTH_OF.values(), not _knows_lengths(columns[name])

    for name in sorted(columns, key=rank):
        column = column_of(schema, name)
        packed = _pack(column, columns[name], lengths_of)
        if len(packed) != size:
            raise BatchError(f"column '{name}' has {len(packed)} rows, the batch {size}")
        if column.axis and packed.lengths is not None:
            lengths.setdefault(column.axis, packed.lengths)
        out[name] = packed
    return {name: out[name] for name in columns}


def _knows_lengths(data: Any) -> bool:
    return isinstance(data, Packed | list | tuple)


def _pack(column: Column, data: Any, lengths_of: Callable[[str], Lengths | None]) -> Packed:
    packed = _convert(column, data, lengths_of)
    if (packed.lengths is not None) != (column.axis is not None):
        raise BatchError(f"column '{column.name}' is {column.shape}; its data is of another shape")
    if packed.values.dtype != np.dtype(column.dtype):
        raise BatchError(
            f"column '{column.name}' is {column.dtype}; its data is {packed.values.dtype}"
        )
    expected = lengths_of(column.axis) if column.axis else None
    if expected is not None and not np.array_equal(expected, _lengths(packed)):
        raise BatchError(f"rows of column '{column.name}' differ in length from the batch's")
    return packed


def _lengths(packed: Packed) -> Lengths:
    assert packed.lengths is not None
    return packed.lengths


def _convert(column: Column, data: Any, lengths_of: Callable[[str], Lengths | None]) -> Packed:
    if isinstance(data, Packed):
        return data
    if column.dtype == "object":
        values = np.empty(len(data), object)
        for row, value in enumerate(data):
            values[row] = value
        return Packed(values)
    if column.axis and isinstance(data, list | tuple):
        return _from_rows(column, data)
    return _from_dense(column, data, lengths_of)


def _from_rows(column: Column, rows: list[Any] | tuple[Any, ...]) -> Packed:
    arrays = [_array(column, row) for row in rows]
    for array in arrays:
        if array.ndim != len(column.shape) - 1 and array.size:
            raise BatchError(
                f"column '{column.name}' is {column.shape}; a row of it has shape {array.shape}"
            )
    return Packed.from_rows(arrays, column.dtype)


def _from_dense(column: Column, data: Any, lengths_of: Callable[[str], Lengths | None]) -> Packed:
    dense = _array(column, data)
    if dense.ndim != len(column.shape):
        raise BatchError(
            f"column '{column.name}' is {column.shape}; its data has shape {dense.shape}"
        )
    if column.axis is None:
        return Packed(dense)
    lengths = lengths_of(column.axis)
    if lengths is None:
        lengths = np.full(len(dense), dense.shape[1], np.int64)
    if len(lengths) != len(dense):
        raise BatchError(f"column '{column.name}' has {len(dense)} rows, the batch {len(lengths)}")
    if lengths.max(initial=0) > dense.shape[1]:
        raise BatchError(
            f"column '{column.name}' has width {dense.shape[1]}, "
            f"the longest row {int(lengths.max())}"
        )
    return Packed.from_padded(dense, lengths, left=column.axis == "P")


def _array(column: Column, data: Any) -> NDArray[Any]:
    """An array of the column's dtype where that loses no kind of information."""
    if isinstance(data, Tensor):
        data = data.detach().cpu()
        array: NDArray[Any] = (data.float() if data.dtype == torch.bfloat16 else data).numpy()
    else:
        array = np.asarray(data)
    if array.dtype == np.dtype(column.dtype):
        return array
    if array.size and not np.can_cast(array.dtype, column.dtype, "same_kind"):
        raise BatchError(f"column '{column.name}' is {column.dtype}; its data is {array.dtype}")
    return array.astype(column.dtype)
