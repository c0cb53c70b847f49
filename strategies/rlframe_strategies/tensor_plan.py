"""What a model's tensor-parallel plan asks for, checked before anything is cut."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from rlframe.errors import ConfigError

__all__ = ["styles_of"]

_LINEAR = ("colwise", "rowwise")
_KNOWN = (*_LINEAR, "replicated_with_grad_allreduce")


def styles_of(lm: Any, size: int) -> dict[str, str]:
    """The plan's style of every layer by name, embedding and head left out.

    Raises ConfigError for a model without a plan, a style that is not known here, and heads that
    ``size`` ranks cannot share.
    """
    kind = type(lm).__name__
    plan = dict(lm.tp_plan or {})
    if not plan:
        raise ConfigError(
            f"strategy.tp={size}: {kind} has no tensor-parallel plan in transformers; use "
            "strategy.tp=1, where fsdp shards it over the ranks"
        )
    _check_heads(lm, size)
    vocabulary = (lm.get_input_embeddings(), lm.get_output_embeddings())
    styles = {}
    for name, module in lm.named_modules():
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if style is None or any(module is one for one in vocabulary):
            continue
        if style not in _KNOWN or (style in _LINEAR and type(module) is not nn.Linear):
            raise ConfigError(
                f"strategy.tp={size}: {kind} wants '{style}' for '{name}' "
                f"({type(module).__name__}), which fsdp does not do; use strategy.tp=1"
            )
        styles[name] = style
    return styles


def _check_heads(lm: Any, size: int) -> None:
    config = lm.config.get_text_config()
    heads = int(config.num_attention_heads)
    kept = int(getattr(config, "num_key_value_heads", None) or heads)
    if heads % size:
        raise ConfigError(f"strategy.tp={size} does not divide the model's {heads} attention heads")
    if kept % size and size % kept:
        raise ConfigError(
            f"strategy.tp={size}: {kept} key-value heads cannot be shared or repeated evenly; "
            f"use a divisor or a multiple of {kept}"
        )
    tokens = len(lm.get_input_embeddings().weight)
    if -(-tokens // size) * (size - 1) >= tokens:
        raise ConfigError(f"strategy.tp={size}: a vocabulary of {tokens} tokens is too small")
