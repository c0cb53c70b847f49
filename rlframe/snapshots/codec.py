"""State of a run as JSON plus named tensors: strict both ways, and nothing is executed on reading.

JSON carries None, bool, int, float (NaN and infinities too), str, list and dict with string keys.
Everything else is a marked object: ``{"$": "tuple", "items": [...]}``, ``{"$": "dict", "items":
[[key, value], ...]}`` (keys that are no strings, or hold "$"), ``{"$": "tensor" | "array", "name":
...}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlframe.errors import SnapshotError

__all__ = ["decode_state", "encode_state"]

_PLAIN = (type(None), bool, int, float, str)
_MARK = "$"


def encode_state(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """A JSON value and the tensors that it names, each a contiguous copy on the CPU.

    Raises SnapshotError, naming the place, for anything that is not None, bool, int, float, str,
    list, tuple, dict, tensor, numpy array or numpy number.
    """
    tensors: dict[str, Tensor] = {}
    return _encode(state, "state", tensors), tensors


def decode_state(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The reverse of :func:`encode_state`. Raises SnapshotError for what it does not know."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        if all(type(item) in _PLAIN for item in value):
            return value
        return [decode_state(item, tensors) for item in value]
    if not isinstance(value, dict):
        raise SnapshotError(f"the state holds a {type(value).__name__}")
    if _MARK not in value:
        return {key: decode_state(item, tensors) for key, item in value.items()}
    return _decode_marked(value, tensors)


def _encode(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return _encode_items(value, place, tensors)
    if kind is tuple:
        return {_MARK: "tuple", "items": _encode_items(value, place, tensors)}
    if isinstance(value, Mapping):
        return _encode_mapping(value, place, tensors)
    if isinstance(value, Tensor):
        return {_MARK: "tensor", "name": _keep(value.detach().to("cpu", copy=True), place, tensors)}
    if isinstance(value, np.ndarray | np.generic):
        return _encode_array(value, place, tensors)
    raise SnapshotError(
        f"{place} is a {kind.__module__}.{kind.__name__}: a state_dict may hold None, bool, int, "
        "float, str, list, tuple, dict, tensors and numpy arrays"
    )


def _encode_items(items: Sequence[Any], place: str, tensors: dict[str, Tensor]) -> list[Any]:
    if all(type(item) in _PLAIN for item in items):
        return list(items)
    return [_encode(item, f"{place}.{i}", tensors) for i, item in enumerate(items)]


def _encode_mapping(value: Mapping[Any, Any], place: str, tensors: dict[str, Tensor]) -> Any:
    if all(type(key) is str and key != _MARK for key in value):
        return {key: _encode(item, f"{place}.{key}", tensors) for key, item in value.items()}
    pairs = []
    for number, (key, item) in enumerate(value.items()):
        if not _is_key(key):
            raise SnapshotError(f"{place} has the key {key!r}, a {type(key).__name__}")
        where = f"{place}.{number}"
        pairs.append([_encode(key, where, tensors), _encode(item, where, tensors)])
    return {_MARK: "dict", "items": pairs}


def _is_key(key: Any) -> bool:
    return type(key) in _PLAIN or (type(key) is tuple and all(_is_key(k) for k in key))


def _encode_array(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    array = np.array(value, copy=True, order="C")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        tensor = torch.from_numpy(array)
    except TypeError as error:
        raise SnapshotError(
            f"{place} is an array of {array.dtype}: only numbers are kept"
        ) from error
    kind = "array" if isinstance(value, np.ndarray) else "number"
    return {_MARK: kind, "name": _keep(tensor, place, tensors)}


def _keep(tensor: Tensor, place: str, tensors: dict[str, Tensor]) -> str:
    """Add a tensor under its place, numbered where a key with a dot made two places alike."""
    name, number = place, 1
    while name in tensors:
        number += 1
        name = f"{place}#{number}"
    tensors[name] = tensor.contiguous()
    return name


def _decode_marked(value: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    kind = value[_MARK]
    body = {key for key in value if key != _MARK}
    if kind in ("tuple", "dict") and body == {"items"} and isinstance(value["items"], list):
        items = value["items"]
        if kind == "tuple":
            return tuple(decode_state(item, tensors) for item in items)
        return {decode_state(k, tensors): decode_state(v, tensors) for k, v in items}
    if kind in ("tensor", "array", "number") and body == {"name"}:
        if value["name"] not in tensors:
            raise SnapshotError(f"the snapshot has no tensor '{value['name']}'")
        tensor = tensors[value["name"]]
        if kind == "tensor":
            return tensor
        return tensor.numpy() if kind == "array" else tensor.numpy()[()]
    raise SnapshotError(f"the state holds {kind!r} with {sorted(body)}, unknown to this rlframe")
