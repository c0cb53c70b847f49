"""A model with its adapters switched off, as a strategy of its own on the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from rlframe.algorithm import Output
from rlframe.errors import ModelError
from rlframe.interfaces.strategy import LossFn, ModelSpec
from rlframe.weights.layout import Layout
from rlframe_strategies.passes import Passes

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlframe_strategies.adapted import Adapted
    from rlframe_strategies.lora import Lora
    from rlframe_strategies.packing import Inputs

__all__ = ["BaseModel"]


class BaseModel(Passes):
    """The frozen base of a model that is trained by adapters; holds no weights itself."""

    def __init__(self, trained: Adapted, lora: Lora) -> None:
        super().__init__(trained.config, trained.rank)
        self.mesh = trained.mesh
        self._trained, self._lora = trained, lora
        self.module, self.device, self.packing = trained.module, trained.device, trained.packing

    def build(self, spec: ModelSpec) -> None:
        """It is built already."""

    def forward(self, micro: TensorDict, computes: Sequence[str]) -> Output:
        """See :class:`Strategy`."""
        with self._lora.off():
            return self._trained.forward(micro, computes)

    def forward_backward(
        self, micros: Sequence[TensorDict], computes: Sequence[str], loss_fn: LossFn
    ) -> None:
        """See :class:`Strategy`; raises ModelError."""
        raise ModelError("a model without an optimiser cannot be trained")

    def step(self, max_grad_norm: float) -> float:
        """See :class:`Strategy`; raises ModelError."""
        raise ModelError("a model without an optimiser cannot be trained")

    def learning_rate(self) -> float:
        """It has none."""
        return 0.0

    def head(self) -> tuple[Tensor, Tensor | None]:
        """The trained model's: a head has no adapter."""
        return self._trained.head()

    def reduce(self, values: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """See :class:`Strategy`."""
        return self._trained.reduce(values, op)

    def layout(self) -> Layout:
        """See :class:`Strategy`."""
        return self._trained.layout()

    def views(self) -> Mapping[str, Tensor]:
        """See :class:`Strategy`."""
        return self._trained.base_views()

    def save(self, directory: Path) -> None:
        """The base is what ``model.path`` says; nothing is written."""

    def load(self, directory: Path) -> None:
        """The base is what ``model.path`` says; nothing is read."""

    def export(self, directory: Path) -> None:
        """See :class:`Strategy`; raises ModelError."""
        raise ModelError("the base of a model with adapters is at model.path already")

    def _flat(
        self, micro: TensorDict | None, computes: Sequence[str]
    ) -> tuple[dict[str, Tensor], Inputs]:
        with self._lora.off():
            found: Any = self._trained._flat(micro, computes)
        flat, inputs = found
        return flat, inputs
