"""Low-rank adapters (LoRA, arXiv 2106.09685) in a language model, by the package peft.

Only the adapters are trained, and the number head of a value or score model, whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rlframe.errors import ConfigError, unknown_name
from rlframe.weights.adapters import LowRank
from rlframe_strategies.classifier import Classifier

if TYPE_CHECKING:
    from rlframe.config import LoraConfig
    from rlframe_strategies.module import LanguageModel

__all__ = ["Lora"]


class Lora:
    """The adapters that were put into a module, and switching them off.

    A new adapter changes nothing: its ``up`` is zero, its ``down`` is drawn from ``seed``. Raises
    ``ConfigError`` for targets that the model does not have.
    """

    def __init__(self, module: LanguageModel, config: LoraConfig, seed: int) -> None:
        from peft import inject_adapter_in_model

        self.config, self._seed = config, seed
        self.targets = _targets(module, config)
        self.peft_config = _peft_config(config, self.targets)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(self.peft_config, module.lm)
        module.lm.requires_grad_(False)
        self._layers = {name: module.lm.get_submodule(name) for name in self.targets}
        for layer in self._layers.values():
            for part in (layer.lora_A, layer.lora_B):
                part.requires_grad_(True)
        module.lm.eval()
        self.scale = config.alpha / config.rank
        self.pairs = {
            f"{name}.weight": LowRank(f"{name}.lora_A.weight", f"{name}.lora_B.weight")
            for name in self.targets
        }

    @property
    def names(self) -> set[str]:
        """Canonical names of the adapters' tensors."""
        return {name for pair in self.pairs.values() for name in (pair.down, pair.up)}

    @property
    def state(self) -> dict[str, Any]:
        """What a snapshot must agree with."""
        return {
            "rank": self.config.rank,
            "alpha": self.config.alpha,
            "targets": sorted(self.targets),
        }

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """The model as it was before adapters."""
        self._disable(True)
        try:
            yield
        finally:
            self._disable(False)

    @contextlib.contextmanager
    def drawing(self, device: torch.device, *place: int) -> Iterator[None]:
        """Passes in which dropout drops, by a seed made of the run's and ``place``."""
        if not self.config.dropout:
            yield
            return
        devices = [device] if device.type == "cuda" else []
        self._drop(True)
        try:
            with torch.random.fork_rng(devices=devices):
                torch.manual_seed(hash((self._seed, *place)) & (2**63 - 1))
                yield
        finally:
            self._drop(False)

    def _disable(self, off: bool) -> None:
        # Peft's own switch also changes requires_grad, which sharded parameters may not see.
        for layer in self._layers.values():
            layer._disable_adapters = off

    def _drop(self, on: bool) -> None:
        for layer in self._layers.values():
            layer.lora_dropout.train(on)


def _peft_config(config: LoraConfig, targets: list[str]) -> Any:
    import peft

    return peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(targets),
        bias="none",
    )


def _targets(module: LanguageModel, config: LoraConfig) -> list[str]:
    """Full names of the linear layers that get an adapter."""
    kind = type(module.lm).__name__
    if isinstance(module, Classifier):
        raise ConfigError(
            f"model.lora.rank={config.rank}: {kind} has a head of its own kind, which adapters "
            "cannot train: set model.lora.rank=0 for its role"
        )
    head = module.lm.get_output_embeddings()
    linear = {n: m for n, m in module.lm.named_modules() if isinstance(m, nn.Linear)}
    heads = {n.rpartition(".")[2] for n, m in linear.items() if m is head}
    found = [n for n, m in linear.items() if m is not head]
    if not found:
        raise ConfigError(
            f"model.lora.rank={config.rank}: {kind} has no linear layers below its head that could "
            "get an adapter: set model.lora.rank=0"
        )
    chosen: set[str] = set()
    for target in config.targets:
        mine = {n for n in found if n == target or n.endswith(f".{target}")}
        if not mine:
            if target in heads:
                raise ConfigError(
                    f"model.lora.targets: '{target}' is the head, which gets no adapter: leave it "
                    "out"
                )
            known = dict.fromkeys(n.rpartition(".")[2] for n in found)
            raise ConfigError(f"model.lora.targets: {unknown_name('layer', target, known)}")
        chosen |= mine
    return [n for n in found if not config.targets or n in chosen]
