"""Device memory given back while a model rests: its storages' contents wait on the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Parking"]


@dataclass(frozen=True)
class _Parked:
    """A storage and its bytes; None: zeros."""

    storage: torch.UntypedStorage
    size: int
    host: Tensor | None


class Parking:
    """Empties storages in place, so that every tensor over them is whole again afterwards."""

    def __init__(self) -> None:
        self._parked: dict[int, _Parked] = {}

    def park(self, tensors: Iterable[Tensor], *, keep: bool = True) -> None:
        """Empty the tensors' storages; without ``keep`` they come back as zeros."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage._cdata not in self._parked:
                host = _bytes(storage).to("cpu", copy=True) if keep else None
                self._parked[storage._cdata] = _Parked(storage, storage.nbytes(), host)
                storage.resize_(0)

    def bring_back(self) -> None:
        """Fill all of them again."""
        for one in self._parked.values():
            one.storage.resize_(one.size)
            flat = _bytes(one.storage)
            flat.zero_() if one.host is None else flat.copy_(one.host)
        self._parked.clear()


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return flat.set_(storage)
