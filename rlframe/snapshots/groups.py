"""Waiting groups as plain values and back, exactly: the Buffer's part of a snapshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from rlframe.batching.batch import Batch
from rlframe.batching.columns import Schema
from rlframe.batching.packed import Packed
from rlframe.collecting.entry import EpisodeSummary, GroupEntry, GroupSummary
from rlframe.errors import SnapshotError, unknown_name
from rlframe.interfaces.transfer import TransferEngine

__all__ = ["entries_from_state", "entries_to_state"]

T = TypeVar("T")


def entries_to_state(entries: Sequence[GroupEntry]) -> list[dict[str, Any]]:
    """Runs of groups with the same columns: their summaries, and one value a column for all.

    Values of opaque columns are kept as they are: JSON values, tensors, arrays.
    """
    return [_run(list(run)) for _, run in groupby(entries, key=lambda e: sorted(e.batch.columns))]


def entries_from_state(
    state: Sequence[Mapping[str, Any]], schema: Schema, transfer: TransferEngine
) -> list[GroupEntry]:
    """The reverse of :func:`entries_to_state`; columns are stored in ``transfer``.

    Raises SnapshotError for fields or columns of another version or method.
    """
    return [entry for run in state for entry in _read_run(run, schema, transfer)]


def _run(entries: list[GroupEntry]) -> dict[str, Any]:
    batch = Batch.concat([entry.batch for entry in entries])
    return {
        "groups": [
            {
                "group_id": entry.group_id,
                "source": entry.source,
                "episodes": [_fields(episode) for episode in entry.episodes],
            }
            for entry in entries
        ],
        "columns": {name: _column(batch.packed(name)) for name in batch},
    }


def _read_run(run: Mapping[str, Any], schema: Schema, transfer: TransferEngine) -> list[GroupEntry]:
    if set(run) != {"groups", "columns"}:
        raise SnapshotError(_other("run of groups", set(run) ^ {"groups", "columns"}))
    groups = [_read_group(group) for group in run["groups"]]
    for name in run["columns"]:
        if name not in schema:
            raise SnapshotError(
                f"waiting groups of the snapshot: {unknown_name('column', name, schema)}"
            )
    columns = {name: _packed(column) for name, column in run["columns"].items()}
    whole = Batch.from_columns(columns, schema=schema, transfer=transfer)
    parts = whole.split([group.rows for group in groups])
    return [group.at(part) for group, part in zip(groups, parts, strict=True)]


def _read_group(state: Mapping[str, Any]) -> GroupSummary:
    fields = dict(state)
    fields["episodes"] = tuple(_read_episode(episode) for episode in fields["episodes"])
    return _make(GroupSummary, fields)


def _read_episode(state: Mapping[str, Any]) -> EpisodeSummary:
    fields = dict(state)
    fields["versions"] = tuple(fields["versions"])
    return _make(EpisodeSummary, fields)


def _column(packed: Packed) -> dict[str, Any]:
    opaque = packed.values.dtype == object
    return {"values": list(packed.values) if opaque else packed.values, "lengths": packed.lengths}


def _packed(state: Mapping[str, Any]) -> Packed:
    values = state["values"]
    if isinstance(values, list):
        array = np.empty(len(values), object)
        for row, value in enumerate(values):
            array[row] = value
        return Packed(array)
    return Packed(np.asarray(values), state["lengths"])


def _fields(value: Any) -> dict[str, Any]:
    """Fields of a dataclass, one level deep; tuples become lists, mappings dicts, all copied."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if isinstance(item, list | tuple):
            item = list(item)
        elif isinstance(item, Mapping):
            item = dict(item)
        out[field.name] = item
    return out


def _make(kind: type[T], fields: Mapping[str, Any]) -> T:
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if set(fields) != known:
        raise SnapshotError(_other(kind.__name__, set(fields) ^ known))
    return kind(**fields)


def _other(what: str, odd: set[str]) -> str:
    return (
        f"the snapshot's {what} has other fields than this rlframe's "
        f"({', '.join(sorted(odd))}): resume with the version that wrote it"
    )
