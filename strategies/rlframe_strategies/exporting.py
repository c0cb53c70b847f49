"""Write a trained model as a Hugging Face folder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlframe_strategies.loading import quiet, save_tokenizer

if TYPE_CHECKING:
    from rlframe_strategies.lora import Lora
    from rlframe_strategies.module import LanguageModel

__all__ = ["write_adapters", "write_model"]

_CLASSES = {
    "value": ("AutoModelForTokenClassification", "AutoModelForSequenceClassification"),
    "score": ("AutoModelForSequenceClassification",),
}


def write_model(
    module: LanguageModel,
    weights: dict[str, Tensor],
    source: str,
    original_config: Any,
    directory: Path,
) -> None:
    """Save whole weights (by canonical name) with config, generation config and tokenizer.

    Values and scores are written as token and sequence classification with one label, where the
    architecture has such a class; else as the causal model, with ``score.*`` beside its backbone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(original_config)
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    tensors = {name: w.to(dtype).contiguous() for name, w in weights.items()}
    for name, buffer in _persistent_buffers(module).items():
        tensors[name] = buffer.cpu()
    skeleton = _skeleton(module, config)
    config.dtype = dtype
    generation = getattr(module.lm, "generation_config", None)
    if generation is not None and module.kind in ("policy", "teacher"):
        skeleton.generation_config = copy.deepcopy(generation)
    with quiet():
        skeleton.save_pretrained(directory, state_dict=tensors)
    save_tokenizer(source, directory)


_TASKS = {"policy": "CAUSAL_LM", "teacher": "CAUSAL_LM", "value": "TOKEN_CLS", "score": "SEQ_CLS"}
_PREFIX = "base_model.model."


def write_adapters(
    lora: Lora, kind: str, weights: dict[str, Tensor], source: str, directory: Path
) -> None:
    """Save adapters (and a number head, whole) as ``PeftModel.from_pretrained`` reads them."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(lora.peft_config)
    config.base_model_name_or_path = source
    config.task_type = _TASKS[kind]
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules)
    if set(weights) - lora.names:
        config.modules_to_save = ["score"]
    config.save_pretrained(str(directory))
    tensors = {_PREFIX + name: w.contiguous() for name, w in weights.items()}
    save_file(tensors, str(directory / "adapter_model.safetensors"), metadata={"format": "pt"})
    save_tokenizer(source, directory)


def _skeleton(module: LanguageModel, config: Any) -> Any:
    """A model of the class to be written, without storage: it knows how to write itself."""
    import transformers

    if module.kind in _CLASSES:
        config.num_labels = 1
    for name in (*_CLASSES.get(module.kind, ()), "AutoModelForCausalLM"):
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            break
    with torch.device("meta"):
        return auto.from_config(config, dtype=config.dtype)


def _persistent_buffers(module: LanguageModel) -> dict[str, Tensor]:
    """Buffers that belong to the checkpoint (routers' correction biases and the like)."""
    names = {name for name, _ in module.lm.named_buffers()}
    return {name: t for name, t in module.lm.state_dict().items() if name in names}
