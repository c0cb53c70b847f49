"""Weights in the form that SGLang takes: the folder of a model."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlframe.errors import RolloutError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Whole", "buckets", "part_name", "save_model"]

_BESIDE = ("*.json", "*.jinja", "tokenizer.model", "*.txt")
"""Files of a model besides its weights."""


def save_model(folder: Path, source: str, tensors: Mapping[str, Tensor]) -> Path:
    """A folder with these weights and the rest of the model in ``source``; the one before goes.

    The new folder is whole before its name is given, since servers may read the old one.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    before = sorted(folder.glob("weights-*"))
    numbers = (int(one.name.rpartition("-")[2]) for one in before)
    target = folder / f"weights-{max(numbers, default=-1) + 1}"
    target.mkdir()
    for pattern in _BESIDE:
        for file in Path(source).glob(pattern):
            if not file.name.endswith(".index.json"):
                shutil.copy(file, target)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(whole, target / "model.safetensors", metadata={"format": "pt"})
    for old in itertools.islice(before, max(len(before) - 1, 0)):
        shutil.rmtree(old, ignore_errors=True)
    return target


class Whole:
    """Whether all weights come: SGLang keeps those that do not as they were, silently."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise RolloutError where one is missing that came before."""
        missing = sorted(self._known - set(tensors))
        if missing:
            raise RolloutError(f"no weights came for {missing[:3]}, which came before")

    def came(self, tensors: Mapping[str, Tensor]) -> None:
        """These were taken."""
        self._known = set(tensors)


def buckets(
    tensors: Iterable[tuple[str, Tensor]], limit: int
) -> Iterator[list[tuple[str, Tensor]]]:
    """Weights in their order, as many as fit into the limit, bytes, but one at least."""
    part: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in tensors:
        more = tensor.numel() * tensor.element_size()
        if part and size + more > limit:
            yield part
            part, size = [], 0
        part.append((name, tensor.detach()))
        size += more
    yield part


def part_name(version: int, *, last: bool) -> str:
    """What weights are called from a part of them on; until the last no token of theirs counts."""
    return str(version) if last else f"{version}-in-part"
