"""From a :class:`ModelSpec` to a module on the CPU, checked, before it is placed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from rlframe.errors import ConfigError, ModelError
from rlframe.models.paths import resolve_model
from rlframe_strategies.attention import FLASH, supports_packing
from rlframe_strategies.classifier import Classifier, is_own_kind
from rlframe_strategies.loading import load_model, read_config, read_tensors
from rlframe_strategies.module import LanguageModel
from rlframe_strategies.packing import make_inputs

if TYPE_CHECKING:
    from rlframe.interfaces.strategy import ModelSpec

__all__ = ["Built", "Packing", "PackingRule", "build_module", "packing_of"]

Packing = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class Built:
    """The module, the folder or hub name that it came from, and the config that it had there."""

    module: LanguageModel
    source: str
    original_config: Any


def build_module(spec: ModelSpec, device: torch.device) -> Built:
    """Load a model, give it its kind's head, check that head, switch on checkpointing."""
    if spec.kind == "score" and is_own_kind(read_config(resolve_model(spec.path))):
        whole = load_model(spec.path, spec.model, device, "AutoModelForSequenceClassification")
        return Built(Classifier(whole.model, whole.source), whole.source, whole.original_config)
    loaded = load_model(spec.path, spec.model, device)
    if loaded.model.lacks_head and spec.kind in ("policy", "teacher"):
        raise ModelError(f"model '{loaded.source}' has no language-model head")
    module = LanguageModel(loaded.model, spec.kind, spec.temperature)
    module.eval()
    module.check_head(loaded.source)
    if spec.kind in ("value", "score"):
        found = _load_score(module, loaded.source)
        if spec.kind == "score" and spec.optim is None and not found:
            raise ModelError(
                f"model '{loaded.source}' has no score head, so that it would score everything 0: "
                "name a sequence classifier with one label, such as --algo rm and rlframe export "
                "make"
            )
    if spec.model.gradient_checkpointing:
        _checkpoint(module)
    return Built(module, loaded.source, loaded.original_config)


def _load_score(module: LanguageModel, source: str) -> bool:
    """Take the number head of a checkpoint, if it has one; a new head starts at zero."""
    tensors = read_tensors(source, ("score.weight", "score.bias"))
    for name, tensor in tensors.items():
        target = getattr(module.score, name.removeprefix("score."))
        if target is None or target.shape != tensor.shape:
            shape = None if target is None else tuple(target.shape)
            raise ModelError(
                f"model '{source}': {name} has shape {tuple(tensor.shape)}, not {shape}"
            )
        with torch.no_grad():
            target.copy_(tensor)
    return "score.weight" in tensors


def _checkpoint(module: LanguageModel) -> None:
    """Recompute layers in the backward pass; only these flags are set to training, no dropout."""
    if not module.lm.supports_gradient_checkpointing:
        raise ConfigError("model.gradient_checkpointing: this model does not support it")
    module.lm.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in module.modules():
        if hasattr(layer, "gradient_checkpointing"):
            layer.training = True


@dataclass(frozen=True)
class PackingRule:
    """Which rows are laid side by side.

    ``window``: rows of more tokens are padded (0: none are); ``ours``: through our attention, not
    a flash kernel of the model's own.
    """

    packs: bool
    window: int = 0
    ours: bool = False

    def applies(self, longest: int) -> bool:
        """Whether a micro-batch with a longest row of that many tokens is packed."""
        return self.packs and (not self.window or longest <= self.window)


def packing_of(module: LanguageModel, packing: Packing, attn: str) -> PackingRule:
    """How a model's rows are packed.

    A model with sliding-window attention packs rows that fit into its window. ``auto`` packs where
    a trial agrees with the padded forward; ``on`` raises ``ConfigError`` where packing cannot be.
    """
    if packing == "off" or isinstance(module, Classifier):
        return PackingRule(False)
    config = module.lm.config
    if supports_packing(module.lm):
        if config._attn_implementation in FLASH:
            return PackingRule(True)
        if attn in ("auto", "sdpa") and _agrees(module):
            window: int = getattr(config, "sliding_window", None) or 0
            slides = getattr(config, "use_sliding_window", True) is not False
            return PackingRule(True, window if slides else 0, ours=True)
    if packing == "on":
        raise ConfigError(
            f"strategy.packing=on: {type(module.lm).__name__} with attn={attn} cannot be packed; "
            "use packing=auto"
        )
    return PackingRule(False)


@torch.no_grad()
def _agrees(module: LanguageModel) -> bool:
    """Compare packed and padded hidden states on short rows, two of which share a prompt."""
    from tensordict import TensorDict

    lengths = torch.tensor([2, 1, 2])
    micro = TensorDict(
        {
            "prompt_ids": torch.tensor([[1, 2], [0, 3], [1, 2]]),
            "response_ids": torch.tensor([[4, 5, 6, 7, 8], [5, 0, 0, 0, 0], [7, 6, 5, 0, 0]]) % 8,
            "prompt_lengths": lengths,
            "response_lengths": torch.tensor([5, 1, 3]),
        },
        batch_size=[3],
    )
    states = []
    for packed in (False, True):
        module.use_packed_attention(packed)
        inputs = make_inputs(micro, packed=packed, masked=not packed, whole=False, shared=packed)
        states.append(module.hidden(inputs).index_select(0, inputs.take).float())
    module.use_packed_attention(False)
    error = (states[0] - states[1]).abs().max() / states[0].abs().max().clamp(min=1e-6)
    exact = next(module.parameters()).dtype == torch.float32
    return bool(error < (1e-4 if exact else 5e-2))
