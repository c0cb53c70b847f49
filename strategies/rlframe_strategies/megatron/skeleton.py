"""A model by its Hugging Face names: what it has, how it is cut, and its weights from a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlframe.errors import ModelError
from rlframe.weights.layout import Layout, ParamInfo, Piece
from rlframe.weights.model_cuts import cuts_of_model
from rlframe.weights.sharding import Cut
from rlframe.weights.storage import local_view
from rlframe_strategies.module import LanguageModel

if TYPE_CHECKING:
    from rlframe.interfaces.strategy import ModelSpec

__all__ = ["Skeleton", "fill_weights", "skeleton_of"]


@dataclass(frozen=True)
class Skeleton:
    """The transformers model with its kind's head, without storage, and its parameters."""

    module: LanguageModel
    params: Mapping[str, ParamInfo]
    cuts: Mapping[str, Cut]


def skeleton_of(config: Any, spec: ModelSpec, dtype: torch.dtype) -> Skeleton:
    """From a transformers config; a new head (values, scores) stands in for the vocabulary's."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, dtype=dtype)
        _, cuts = cuts_of_model(lm)
        module = LanguageModel(lm, spec.kind, spec.temperature)
    module.requires_grad_(False)
    kind = str(dtype).removeprefix("torch.")
    params = {n: ParamInfo(tuple(p.shape), kind) for n, p in module.named_weights()}
    if spec.kind in ("value", "score"):
        cuts = {n: replace(c, ends=c.ends[:1]) if "first" in c.ends else c for n, c in cuts.items()}
    return Skeleton(module, params, {name: cuts.get(name, Cut()) for name in params})


@torch.no_grad()
def fill_weights(
    source: str, layout: Layout, pieces: Iterable[Piece], views: Mapping[str, Tensor]
) -> set[str]:
    """Copy this rank's pieces from a checkpoint's safetensors; the names of the model it lacks.

    Raises ModelError where there is no such file, or a tensor has another shape.
    """
    with ExitStack() as stack:
        slices = _slices(source, stack)
        saved_as = {n: n if n in slices else n.removeprefix("model.") for n in layout.params}
        lacking = {name for name, saved in saved_as.items() if saved not in slices}
        for piece in pieces:
            name = saved_as[piece.name]
            if piece.name in lacking:
                continue
            shape, saved = layout.params[piece.name].shape, slices[name].get_slice(name)
            if tuple(saved.get_shape()) != shape:
                raise ModelError(
                    f"model '{source}': {name} has shape {tuple(saved.get_shape())}, not {shape}"
                )
            local_view(piece, views[piece.view.key]).copy_(saved[piece.box.slices()])
    return lacking


def _slices(source: str, stack: ExitStack) -> dict[str, Any]:
    """Which open file holds a tensor, by its name."""
    from safetensors import SafetensorError, safe_open

    files = sorted(_folder(source).glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"model '{source}' has no safetensors, which strategy 'megatron' reads: load it with "
            "transformers and save_pretrained it"
        )
    found: dict[str, Any] = {}
    for file in files:
        try:
            tensors = stack.enter_context(safe_open(str(file), framework="pt"))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"model '{source}': {file} cannot be read: {error}") from error
        found.update(dict.fromkeys(tensors.keys(), tensors))
    return found


def _folder(source: str) -> Path:
    """A folder itself, or the hub's snapshot of a name."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=["*.safetensors", "*.json"]))
    except (OSError, ValueError) as error:
        raise ModelError(f"model '{source}' cannot be loaded: {error}") from error
