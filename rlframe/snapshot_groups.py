"""Groups of episodes as plain values and back, exactly: the Buffer's part of a snapshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from rlframe.errors import SnapshotError
from rlframe.requests import Episode, Group, Request, Row, Sampling, Segment

__all__ = ["group_from_state", "group_to_state"]

T = TypeVar("T")


def group_to_state(group: Group) -> dict[str, Any]:
    """Dicts, lists, numbers and strings; floats keep every bit.

    Columns of the row and of episodes are kept as they are: JSON values, tensors, arrays.
    """
    return {
        "row": _fields(group.row) | {"sampling": _fields(group.row.sampling)},
        "episodes": [_episode(episode) for episode in group.episodes],
    }


def group_from_state(state: Mapping[str, Any]) -> Group:
    """The reverse of :func:`group_to_state`. Raises SnapshotError for fields of another version."""
    row = dict(state["row"])
    row["sampling"] = _make(Sampling, row["sampling"])
    return Group(_make(Row, row), [_read_episode(episode) for episode in state["episodes"]])


def _episode(episode: Episode) -> dict[str, Any]:
    request = _fields(episode.request) | {"sampling": _fields(episode.request.sampling)}
    segments = [_fields(segment) for segment in episode.segments]
    return _fields(episode) | {"request": request, "segments": segments}


def _read_episode(state: Mapping[str, Any]) -> Episode:
    fields = dict(state)
    request = dict(fields["request"])
    request["sampling"] = _make(Sampling, request["sampling"])
    fields["request"] = _make(Request, request)
    fields["segments"] = [_make(Segment, segment) for segment in fields["segments"]]
    return _make(Episode, fields)


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


_TUPLES = {(Row, "prompt_ids"), (Request, "prompt_ids"), (Sampling, "stop")}
_TUPLES.add((Sampling, "stop_token_ids"))


def _make(kind: type[T], fields: Mapping[str, Any]) -> T:
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if set(fields) != known:
        odd = ", ".join(sorted(set(fields) ^ known))
        raise SnapshotError(
            f"a {kind.__name__} of the snapshot has other fields than this rlframe's ({odd}): "
            "resume with the version that wrote it"
        )
    return kind(**{n: tuple(v) if (kind, n) in _TUPLES else v for n, v in fields.items()})
