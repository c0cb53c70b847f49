"""Every element as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.interfaces.checkpoint import Codec

__all__ = ["FullCodec"]


class FullCodec(Codec):
    """Plain elements: any version can be read without another."""

    plain = True

    def encode(self, elements: NDArray[Any], base: NDArray[Any] | None) -> bytes | None:
        """See :class:`Codec`; plain elements are what is written without a codec."""
        return None

    def decode(self, data: NDArray[np.uint8], base: NDArray[Any]) -> NDArray[Any]:
        """See :class:`Codec`."""
        return data.view(base.dtype).copy()
