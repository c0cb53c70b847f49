"""Only the elements that changed: at the learning rates of RL most bfloat16 weights stay equal."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.errors import SyncError
from rlframe.interfaces.checkpoint import Codec

__all__ = ["DeltaCodec"]

_HEAD = struct.Struct("<QB")
_GAPS = tuple(np.dtype(kind) for kind in (np.uint8, np.uint16, np.uint32))


class DeltaCodec(Codec):
    """Gaps between changed elements in the narrowest integers that hold them, then the elements.

    Bit-exact. Where more changed than pays, the plain elements are sent instead.
    """

    needs_base = True

    def encode(self, elements: NDArray[Any], base: NDArray[Any] | None) -> bytes | None:
        """See :class:`Codec`."""
        if base is None:
            return None
        where = np.flatnonzero(elements != base)
        gaps = np.diff(where, prepend=-1) - 1
        widest = int(gaps.max(initial=0))
        kind = next((i for i, g in enumerate(_GAPS) if widest < 2 ** (8 * g.itemsize)), None)
        if kind is None:
            return None
        size = _HEAD.size + len(where) * (_GAPS[kind].itemsize + elements.itemsize)
        if size >= elements.nbytes:
            return None
        head = _HEAD.pack(len(where), kind)
        return head + gaps.astype(_GAPS[kind]).tobytes() + elements[where].tobytes()

    def decode(self, data: NDArray[np.uint8], base: NDArray[Any]) -> NDArray[Any]:
        """See :class:`Codec`."""
        raw = data.tobytes()
        if len(raw) < _HEAD.size:
            raise SyncError("a delta without a head")
        count, kind = _HEAD.unpack_from(raw)
        if kind >= len(_GAPS):
            raise SyncError(f"a delta with gaps of kind {kind}")
        gap = _GAPS[kind]
        if len(raw) != _HEAD.size + count * (gap.itemsize + base.itemsize):
            raise SyncError("a delta of the wrong length")
        gaps = np.frombuffer(raw, gap, count, _HEAD.size).astype(np.int64)
        where = np.cumsum(gaps + 1) - 1
        if count and where[-1] >= len(base):
            raise SyncError("a delta beyond its bucket")
        out = base.copy()
        out[where] = np.frombuffer(raw, base.dtype, count, _HEAD.size + count * gap.itemsize)
        return out
