"""Which blocks may be forgotten: groups that were collected together share theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlframe.batching.batch import Batch
from rlframe.interfaces.transfer import Handle, TransferEngine

__all__ = ["Ledger"]


class Ledger:
    """Frees a block once each of its rows was learned from or thrown away."""

    def __init__(self, transfer: TransferEngine) -> None:
        self._transfer = transfer
        self._waiting: dict[str, NDArray[np.bool_]] = {}

    def done(self, batch: Batch) -> None:
        """No row of this batch will be read again."""
        over: list[Handle] = []
        for handle, rows in batch.pieces():
            if handle.carries and handle.ref is None:
                continue
            waiting = self._waiting.setdefault(handle.key, np.ones(handle.rows, bool))
            waiting[rows] = False
            if not waiting.any():
                over.append(handle)
                del self._waiting[handle.key]
        self._transfer.free(over)
