"""A stand-in for CUDA, so that megatron-core 0.19 runs on gloo where there is none.

Megatron asks ``torch.cuda`` for the current device, streams and random states, and names "cuda" as
a device here and there. Its modules get a ``torch`` of their own in which these mean the CPU; torch
itself, and so every other part of the process, stays as it is.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch

from rlframe.errors import ConfigError

__all__ = ["importing_megatron", "install", "moving_nowhere", "redirect"]

_MODULES = (
    "parallel_state",
    "tensor_parallel",
    "tensor_parallel.random",
    "models.gpt",
    "models.gpt.gpt_layer_specs",
    "pipeline_parallel",
    "distributed",
    "optimizer",
)
_RENAMED = ("reduce_scatter_tensor", "all_gather_into_tensor", "_all_gather_base")
"""Collectives of torch whose old names Megatron calls."""
_MAKERS = ("zeros", "ones", "empty", "full", "tensor", "arange")
"""Functions that Megatron calls with device="cuda"."""


def importing_megatron() -> None:
    """Import what the strategy needs, without advice for pretraining.

    Raises ConfigError for a version that is not known.
    """
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    for name in _RENAMED:
        warnings.filterwarnings("ignore", message=f".*torch.distributed.{name}. is deprecated")
    for name in _MODULES:
        importlib.import_module(f"megatron.core.{name}")
    version: str = sys.modules["megatron.core"].__version__
    if not version.startswith("0.19."):
        raise ConfigError(
            f"strategy 'megatron' knows megatron-core 0.19, and finds {version}: "
            "pip install --no-deps megatron-core==0.19.2"
        )


def install() -> None:
    """Import Megatron, and let its modules see the stand-in. A second call changes nothing.

    Raises ConfigError on a machine with CUDA, where the real one is there.
    """
    if torch.cuda.is_available():
        raise ConfigError(
            "cluster.device=cpu: where there is CUDA, strategy 'megatron' runs on it alone; set "
            "cluster.device=auto, or take --strategy fsdp"
        )
    importing_megatron()
    random: Any = sys.modules["megatron.core.tensor_parallel.random"]
    random._get_cuda_rng_state = _get_state
    random._set_cuda_rng_state = _set_state
    redirect()


def redirect() -> None:
    """Give the stand-in to Megatron's modules that were imported since."""
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and getattr(module, "torch", None) is torch:
            module.torch = _TORCH  # type: ignore[attr-defined]


@contextmanager
def moving_nowhere() -> Iterator[None]:
    """While a model is built: a tensor's ``cuda()`` is the tensor."""
    real = torch.Tensor.cuda
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.cuda = real  # type: ignore[method-assign]


def _get_state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)


class _Stream:
    """A stream or event of a device that does everything at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name in ("wait_stream", "wait_event", "record", "synchronize", "wait", "query"):
            return lambda *_: True
        raise AttributeError(name)


class _Cuda(ModuleType):
    """``torch.cuda`` that means the CPU; what is not here is torch's own."""

    Stream = Event = _Stream

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    @property
    def random(self) -> _Cuda:
        return self

    @staticmethod
    def current_device() -> str:
        return "cpu"

    @staticmethod
    def current_stream(*_: Any) -> _Stream:
        return _Stream()

    default_stream = current_stream

    @staticmethod
    def stream(_: Any) -> Any:
        return nullcontext()

    @staticmethod
    def nothing(*_: Any, **__: Any) -> None:
        """For set_device, synchronize and empty_cache."""

    set_device = synchronize = empty_cache = nothing
    get_rng_state = staticmethod(_get_state)
    set_rng_state = staticmethod(_set_state)
    manual_seed = staticmethod(torch.manual_seed)


class _Torch(ModuleType):
    """``torch`` with that ``cuda``."""

    cuda = _Cuda("torch.cuda")

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        return _on_cpu(found) if name in _MAKERS else found


def _on_cpu(make: Any) -> Any:
    def made(*args: Any, **options: Any) -> Any:
        if options.get("device") == "cuda":
            options["device"] = "cpu"
        return make(*args, **options)

    return made


_TORCH = _Torch("torch")
