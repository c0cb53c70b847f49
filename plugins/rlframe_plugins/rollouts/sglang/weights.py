"""Weights in the form that SGLang takes: the folder of a model."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["save_model"]

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
