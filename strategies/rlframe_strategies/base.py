"""What strategies over a PyTorch module share: building, clipping, steps, snapshots.

A strategy says how the module is placed, where its local tensors and their gradients are, and how
numbers are summed over the ranks.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from rlframe.errors import ModelError
from rlframe.interfaces.strategy import ModelSpec
from rlframe.weights.layout import Layout
from rlframe_strategies.adapted import Adapted
from rlframe_strategies.building import build_module, packing_of
from rlframe_strategies.exporting import write_model
from rlframe_strategies.module import LanguageModel
from rlframe_strategies.optim import Optimiser, squared_norm
from rlframe_strategies.snapshot import load_snapshot, save_snapshot, staged_snapshot

if TYPE_CHECKING:
    from rlframe.config import OptimConfig

__all__ = ["TorchStrategy"]


class TorchStrategy(Adapted):
    """A :class:`LanguageModel` trained by this process and its equals on other ranks."""

    original_config: Any

    # --- what a strategy says -----------------------------------------------------------------

    def start(self) -> None:
        """Join the process group, where there is one."""

    def place(self, module: LanguageModel) -> None:
        """Move the module to the device, shard it; parameters keep their names."""
        self.move(module, self.device)

    def move(self, module: LanguageModel, device: torch.device) -> None:
        """Move a placed module between device and host."""
        module.to(device)

    def local(self, parameter: Tensor) -> Tensor:
        """This rank's storage of a parameter, or of its gradient, as a plain tensor."""
        return parameter.detach()

    @abstractmethod
    def layout(self) -> Layout:
        """Where the parameters' elements lie; each rank knows the whole layout."""

    def state_layout(self) -> Layout:
        """Where the elements of the optimiser's state lie; by default beside what is trained."""
        return self.stored_layout()

    def sum_squares(self, local: Tensor) -> Tensor:
        """Squares () summed over every distinct gradient element, from this rank's sum."""
        return local

    def counts(self, name: str) -> bool:
        """Whether this rank's part of a gradient is in the norm: one of the ranks that share it."""
        return True

    def reduce(self, values: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """One process: a copy."""
        return values.clone()

    # --- building -----------------------------------------------------------------------------

    def build(self, spec: ModelSpec) -> None:
        """Load the model, place it, make the optimiser."""
        self.spec = spec
        if self.rank.threads:
            torch.set_num_threads(self.rank.threads)
        self.device = torch.device(self.rank.device)
        self.start()
        built = build_module(spec, self.device)
        self.module, self.source = built.module, built.source
        self.original_config = built.original_config
        self.packing = packing_of(self.module, self.config.packing, spec.model.attn)
        self.put_adapters(self.module)
        decays = {name for name, info in self.stored.items() if len(info.shape) > 1}
        if spec.optim is None:
            self.module.requires_grad_(False)
        self.place(self.module)
        if spec.optim is not None:
            self.optimiser = self.make_optimiser(decays, spec.optim)

    def make_optimiser(self, decays: set[str], config: OptimConfig) -> Optimiser:
        """The optimiser of the placed module; ``decays`` names the weights with weight decay."""
        return Optimiser(self.stored_weights(), decays, config, self.spec.optim_steps)

    def weights(self) -> dict[str, Tensor]:
        """This rank's storage of every parameter by canonical name."""
        return {name: self.local(p) for name, p in self.module.named_weights()}

    def parameters(self) -> dict[str, nn.Parameter]:
        """The module's parameters by canonical name."""
        return dict(self.module.named_weights())

    # --- steps --------------------------------------------------------------------------------

    def gradients(self) -> dict[str, Tensor]:
        """This rank's part of the summed gradients; a parameter without one is left out."""
        grads = ((n, p.grad) for n, p in self.module.named_weights())
        return {name: self.local(grad) for name, grad in grads if grad is not None}

    @torch.no_grad()
    def step(self, max_grad_norm: float) -> float:
        """Clip, step, clear; see :meth:`Strategy.step`."""
        if self.optimiser is None:
            raise ModelError("a model without an optimiser cannot be trained")
        gradients = self.gradients()
        squares = torch.zeros((), dtype=torch.float64, device=self.device)
        for name, gradient in gradients.items():
            if self.counts(name):
                squares += squared_norm(gradient)
        norm = math.sqrt(float(self.sum_squares(squares)))
        if math.isfinite(norm):
            if 0 < max_grad_norm < norm:
                torch._foreach_mul_(list(gradients.values()), max_grad_norm / norm)
            self.optimiser.step(gradients)
        self.module.zero_grad(set_to_none=True)
        return norm

    def learning_rate(self) -> float:
        """The rate of the next step; 0 without an optimiser."""
        return self.optimiser.learning_rate if self.optimiser else 0.0

    # --- storage ------------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """Write weights, optimiser state, schedule and torch's RNG state."""
        save_snapshot(self, directory)

    def staged_save(self, directory: Path) -> Callable[[], None]:
        """See :class:`Strategy`."""
        return staged_snapshot(self, directory)

    def load(self, directory: Path) -> None:
        """Read what any strategy of any number of ranks saved."""
        load_snapshot(self, directory)

    def export(self, directory: Path) -> None:
        """Write a folder that ``from_pretrained`` loads, in the model's original type."""
        whole: dict[str, Tensor] = {}
        for name, tensor in self.whole_weights():
            if self.rank.rank == 0:
                whole[name] = tensor.cpu()
        if self.rank.rank == 0:
            write_model(self.module, whole, self.source, self.original_config, directory)

    def offload(self) -> None:
        """Move weights, gradients and optimiser state to the host; nothing to do on a CPU."""
        if self.device.type != "cpu":
            self._move(torch.device("cpu"))

    def onload(self) -> None:
        """The reverse of :meth:`offload`."""
        if self.device.type != "cpu":
            self._move(self.device)

    def _move(self, device: torch.device) -> None:
        self.move(self.module, device)
        self.release_views()
        if self.optimiser is not None:
            self.optimiser.move(self.stored_weights())

    def close(self) -> None:
        """Drop module and optimiser."""
        self.optimiser = None
        self.__dict__.pop("module", None)
