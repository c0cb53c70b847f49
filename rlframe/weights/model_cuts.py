"""How tensor and pipeline parallelism cut a Hugging Face model, read from its config alone.

The model's own tensor-parallel plan (``tp_plan`` of transformers) says which projections are cut
by columns and which by rows; embedding and head are cut by vocabulary, the rest is replicated. Its
expert-parallel plan (``ep_plan``) says which tensors count experts in their first dimension.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlframe.errors import ModelError
from rlframe.weights.layout import ParamInfo
from rlframe.weights.sharding import Cut

__all__ = ["cuts_of_model", "meta_model"]

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_QUERY = re.compile(r"(?:^|\.)q_proj$")
_KEY_VALUE = re.compile(r"(?:^|\.)[kv]_proj$")
_EXPERT = re.compile(r"(?:^|\.)experts\.(\d+)\.")
_EXPERTS = re.compile(r"(?:^|\.)experts\.[^.]+$")
_ALL_EXPERTS = "grouped_gemm"
"""The style of a tensor that counts experts in its first dimension."""


def meta_model(path: str) -> Any:
    """A causal language model without storage. Raises ModelError.

    ``path`` is a folder with config.json, or that file.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"no model description in '{path}': {error}") from error


def cuts_of_model(model: Any, dtype: str = "") -> tuple[dict[str, ParamInfo], dict[str, Cut]]:
    """Parameters by Hugging Face name, tied ones once, and how each is cut.

    ``dtype`` replaces the parameters' own. Raises ModelError where the model has no plan.
    """
    plan: Mapping[str, str] = model.tp_plan
    if not plan:
        raise ModelError(
            f"{type(model).__name__} has no tensor-parallel plan in transformers: it can be placed "
            "by fsdp or ddp, not by tensor parallelism"
        )
    text = model.config.get_text_config()
    params, cuts = {}, {}
    vocabulary = {id(m) for m in (model.get_input_embeddings(), model.get_output_embeddings())}
    owners = {f"{name}.": module for name, module in model.named_modules() if name}
    head = getattr(model.get_output_embeddings(), "weight", None)
    tied = model.get_input_embeddings().weight is head
    for name, parameter in model.named_parameters():
        kind = dtype or str(parameter.dtype).removeprefix("torch.")
        params[name] = ParamInfo(tuple(parameter.shape), kind)
        module, _, leaf = name.rpartition(".")
        if id(owners.get(f"{module}.")) in vocabulary:
            is_input = owners[f"{module}."] is model.get_input_embeddings()
            ends = ("first", "last") if tied else ("first",) if is_input else ("last",)
            cuts[name] = Cut(axis=0, ends=ends)  # type: ignore[arg-type]
            continue
        cuts[name] = _cut(name, module, leaf, parameter.ndim, plan, text)
    return params, _with_experts(params, cuts, getattr(model, "ep_plan", None) or {})


def _cut(name: str, module: str, leaf: str, dims: int, plan: Mapping[str, str], config: Any) -> Cut:
    found = _LAYER.search(name)
    layer = int(found.group(1)) if found else None
    style = plan.get(_pattern(name)) or plan.get(_pattern(module)) or ""
    if style.startswith("packed_colwise"):
        return Cut(axis=dims - 2, blocks=2, layer=layer)
    if style.startswith("colwise"):
        return Cut(axis=max(dims - 2, 0), units=_units(module, config), layer=layer)
    if style.startswith("rowwise") and (dims > 1 and leaf != "bias"):
        return Cut(axis=dims - 1, units=_input_units(module, config), layer=layer)
    return Cut(layer=layer)


def _with_experts(
    params: Mapping[str, ParamInfo], cuts: Mapping[str, Cut], plan: Mapping[str, str]
) -> dict[str, Cut]:
    """Cuts that know of experts: one tensor for all of a layer's, or modules numbered by expert."""
    numbered = {name: int(found[1]) for name in params if (found := _EXPERT.search(name))}
    count = 1 + max(numbered.values(), default=-1)
    out = {}
    for name, cut in cuts.items():
        if name in numbered:
            cut = replace(cut, experts=count, expert=numbered[name])
        elif plan.get(_pattern(name)) == _ALL_EXPERTS or (
            _EXPERTS.search(name) and len(params[name].shape) == 3
        ):
            cut = replace(cut, experts=params[name].shape[0])
        out[name] = cut
    return out


def _units(module: str, config: Any) -> int:
    heads = int(config.num_attention_heads)
    if _QUERY.search(module):
        return heads
    if _KEY_VALUE.search(module):
        return int(getattr(config, "num_key_value_heads", None) or heads)
    return 0


def _input_units(module: str, config: Any) -> int:
    return int(config.num_attention_heads) if module.endswith("o_proj") else 0


def _pattern(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)
