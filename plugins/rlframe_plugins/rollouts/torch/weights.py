"""Views of the trainer's tensors by Hugging Face name; nothing is copied or derived from values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlframe.errors import ModelError
from rlframe_plugins.rollouts.torch.arch import Arch

__all__ = ["Layer", "Linear", "Weights"]


@dataclass(frozen=True)
class Linear:
    """A weight (O, I) and a bias (O, 1) or None."""

    weight: Tensor
    bias: Tensor | None

    @property
    def out(self) -> int:
        """Output features."""
        return self.weight.shape[0]


@dataclass(frozen=True)
class Layer:
    """One block. ``qkv`` and ``gate_up`` are one fused view each where the parts lie adjacent."""

    norm_in: Tensor
    qkv: tuple[Linear, ...]
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    norm_mlp: Tensor
    gate_up: tuple[Linear, ...]
    down: Linear


@dataclass(frozen=True)
class Weights:
    """All of a model; norms are (features, 1), ready to scale (features, tokens)."""

    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor

    @classmethod
    def view(cls, arch: Arch, tensors: Mapping[str, Tensor]) -> Weights:
        """Share ``tensors``. Raises ModelError: one is missing, unknown, or of another form."""
        reader = _Reader(tensors)
        _check_shapes(arch, tensors)
        layers = tuple(reader.layer(f"model.layers.{i}.") for i in range(arch.layers))
        embed = reader.take("model.embed_tokens.weight")
        norm = reader.take("model.norm.weight")[:, None]
        head = embed if arch.tied else reader.take("lm_head.weight")
        if arch.tied:
            reader.maybe("lm_head.weight")
        reader.finish()
        return cls(embed, layers, norm, head)

    def named(self, arch: Arch) -> dict[str, Tensor]:
        """Views of the same tensors by Hugging Face name; ``arch`` counts this rank's heads."""
        out = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm[:, 0]}
        if not arch.tied:
            out["lm_head.weight"] = self.head
        query, key = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
        for number, layer in enumerate(self.layers):
            prefix = f"model.layers.{number}."
            attn, mlp = prefix + "self_attn.", prefix + "mlp."
            out[prefix + "input_layernorm.weight"] = layer.norm_in[:, 0]
            out[prefix + "post_attention_layernorm.weight"] = layer.norm_mlp[:, 0]
            for name, norm in (("q_norm", layer.q_norm), ("k_norm", layer.k_norm)):
                if norm is not None:
                    out[f"{attn}{name}.weight"] = norm[0, :, 0]
            inner = layer.down.weight.shape[1]
            qkv = _parts(layer.qkv, (query, key, key))
            gate_up = _parts(layer.gate_up, (inner, inner))
            named = dict(zip((f"{attn}{n}_proj" for n in "qkv"), qkv, strict=True))
            named |= zip((f"{mlp}{n}_proj" for n in ("gate", "up")), gate_up, strict=True)
            named |= {f"{attn}o_proj": layer.o, f"{mlp}down_proj": layer.down}
            for name, linear in named.items():
                out[f"{name}.weight"] = linear.weight
                if linear.bias is not None:
                    out[f"{name}.bias"] = linear.bias[:, 0]
        return out


def _check_shapes(arch: Arch, tensors: Mapping[str, Tensor]) -> None:
    """Raise ModelError where a shape is not the model's; 0 stands for any size."""
    hidden, query, key = arch.hidden, arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    wanted = {
        "embed_tokens": (0, hidden),
        "lm_head": (0, hidden),
        "q_proj": (query, hidden),
        "k_proj": (key, hidden),
        "v_proj": (key, hidden),
        "o_proj": (hidden, query),
        "gate_proj": (0, hidden),
        "up_proj": (0, hidden),
        "down_proj": (hidden, 0),
        "norm": (hidden,),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        shape = wanted.get(module.rpartition(".")[2])
        if shape is None or kind != "weight":
            continue
        fits = len(shape) == tensor.ndim and all(
            size in (0, found) for size, found in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            raise ModelError(
                f"rollout 'torch' was given '{name}' of shape {tuple(tensor.shape)}, where the "
                f"model has {tuple(size or 'any' for size in shape)}"
            )


def _parts(fused: tuple[Linear, ...], sizes: tuple[int, ...]) -> list[Linear]:
    """The linears that lie one after the other in a fused one."""
    if len(fused) == len(sizes):
        return list(fused)
    weight, bias = fused[0].weight, fused[0].bias
    ends = list(itertools.accumulate(sizes))
    spans = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return [Linear(weight[span], None if bias is None else bias[span]) for span in spans]


class _Reader:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._seen: set[str] = set()

    def maybe(self, name: str) -> Tensor | None:
        if name not in self._tensors:
            return None
        self._seen.add(name)
        return self._tensors[name].detach()

    def take(self, name: str) -> Tensor:
        tensor = self.maybe(name)
        if tensor is None:
            raise ModelError(
                f"rollout 'torch' was given no tensor '{name}': the checkpoint engine must pass "
                "every parameter under its Hugging Face name"
            )
        return tensor

    def layer(self, prefix: str) -> Layer:
        attn, mlp = prefix + "self_attn.", prefix + "mlp."
        return Layer(
            norm_in=self.take(prefix + "input_layernorm.weight")[:, None],
            qkv=_fuse([self.linear(f"{attn}{name}_proj") for name in "qkv"]),
            q_norm=self._head_norm(attn + "q_norm.weight"),
            k_norm=self._head_norm(attn + "k_norm.weight"),
            o=self.linear(attn + "o_proj"),
            norm_mlp=self.take(prefix + "post_attention_layernorm.weight")[:, None],
            gate_up=_fuse([self.linear(mlp + "gate_proj"), self.linear(mlp + "up_proj")]),
            down=self.linear(mlp + "down_proj"),
        )

    def linear(self, name: str) -> Linear:
        bias = self.maybe(name + ".bias")
        return Linear(self.take(name + ".weight"), None if bias is None else bias[:, None])

    def _head_norm(self, name: str) -> Tensor | None:
        weight = self.maybe(name)
        return None if weight is None else weight[None, :, None]

    def finish(self) -> None:
        unknown = sorted(set(self._tensors) - self._seen)
        if unknown:
            raise ModelError(
                f"rollout 'torch' has no use for {len(unknown)} given tensors, first "
                f"'{unknown[0]}'; use --rollout hf"
            )
        kinds = {str(t.dtype) for t in self._tensors.values()}
        if len(kinds) > 1:
            raise ModelError(f"rollout 'torch' needs weights of one dtype, not {sorted(kinds)}")


def _fuse(parts: list[Linear]) -> tuple[Linear, ...]:
    weight = _joined([p.weight for p in parts])
    biases = [p.bias for p in parts if p.bias is not None]
    bias = _joined(biases) if len(biases) == len(parts) else None
    if weight is None or (biases and bias is None):
        return tuple(parts)
    return (Linear(weight, bias),)


def _joined(parts: list[Tensor]) -> Tensor | None:
    """One view over tensors that follow each other in one storage, or None."""
    first, rows = parts[0], 0
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        step = rows * first.stride(0)
        if not (same and part.is_contiguous() and part.shape[1:] == first.shape[1:]):
            return None
        if part.storage_offset() != first.storage_offset() + step:
            return None
        rows += part.shape[0]
    return torch.as_strided(first, (rows, *first.shape[1:]), first.stride())
