"""Inside a worker: one model, its optimiser, its mesh. Knows neither roles nor RL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlframe.algorithm import Divergence, Output
from rlframe.calling.protocol import Mesh
from rlframe.errors import ConfigError
from rlframe.weights.layout import Layout

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.config import ModelConfig, OptimConfig
    from rlframe.weights.adapters import Adapters

__all__ = ["LossFn", "ModelSpec", "RankInfo", "Strategy"]

LossFn = Callable[[Output, "TensorDict"], "Tensor"]
"""From a micro-batch's outputs to its share () of the loss; shares add up over micros and ranks."""


@dataclass(frozen=True)
class RankInfo:
    """Which rank a worker is; set in one place, by the cluster."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    host: str = "localhost"
    device: str = "cpu"
    seed: int = 0
    threads: int = 0
    """Compute threads of the worker; 0 leaves the library's default."""
    init_method: str | None = None
    """Rendezvous of the process group, ``tcp://host:port``; None when ``world`` is 1."""
    meets: tuple[int, ...] = ()
    """Ranks that find each other there; none: all."""


@dataclass(frozen=True)
class ModelSpec:
    """What a strategy builds.

    ``kind`` chooses the head: "policy" logits, "value" a number a token, "score" a number a row.
    ``temperature`` divides the logits, so that log-probabilities are those that were sampled from.
    ``optim`` is None for a model that is never trained; ``optim_steps`` is the length of the
    schedule in optimiser steps.
    """

    path: str
    model: ModelConfig
    kind: Literal["policy", "value", "score", "teacher"] = "policy"
    optim: OptimConfig | None = None
    optim_steps: int = 0
    temperature: float = 1.0
    seed: int = 0


class Strategy(ABC):
    """Builds the module for a mesh and runs micro-batches on it.

    Gradients are **summed** over micro-batches and ranks: whatever a library averages is undone
    here. A micro-batch is a TensorDict with ``prompt_ids`` (b, P), ``response_ids`` (b, R),
    ``prompt_lengths``, ``response_lengths`` (b,) and whatever columns the loss reads; an empty one
    (b = 0) still takes part in every collective. ``computes`` names the fields of ``Output``.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What a conformance kit may test: "dp", "tp", "packing", "grad-checkpoint", ..."""

    config: Any
    rank: RankInfo
    mesh: Mesh

    def __init__(self, config: Any, rank: RankInfo) -> None:
        self.config = config
        self.rank = rank
        self.mesh = self.mesh_of(config, rank.world)

    @classmethod
    def mesh_of(cls, config: Any, world: int) -> Mesh:
        """The mesh that this strategy lays over ``world`` ranks; a mapper asks it too.

        Raises ConfigError for sizes that do not divide.
        """
        return Mesh(dp=world)

    @abstractmethod
    def build(self, spec: ModelSpec) -> None:
        """Load or create the model, place it on the mesh, make the optimiser and its schedule."""

    @abstractmethod
    def forward(self, micro: TensorDict, computes: Sequence[str]) -> Output:
        """A pass without gradient; outputs on the CPU, whole rows."""

    @abstractmethod
    def forward_backward(
        self, micros: Sequence[TensorDict], computes: Sequence[str], loss_fn: LossFn
    ) -> None:
        """Add the gradient of every micro-batch's loss share to the parameters' gradients."""

    def attach(self, other: Strategy, form: Divergence) -> None:
        """Measure ``out.divergence`` from another model of the same process.

        ``other`` runs on the same micro-batches without gradient; all logits of a batch never exist
        at once. Raises ConfigError where a strategy cannot, ModelError for another vocabulary.
        """
        raise ConfigError(
            f"{type(self).__name__} computes no logits of two models side by side: choose another "
            "strategy, or the method's form on sampled tokens"
        )

    @abstractmethod
    def step(self, max_grad_norm: float) -> float:
        """Clip to ``max_grad_norm`` (0: never), step optimiser and schedule, clear gradients.

        Returns the norm of the whole gradient before clipping. A non-finite norm changes nothing
        but clears the gradients.
        """

    @abstractmethod
    def learning_rate(self) -> float:
        """The rate of the next step."""

    @abstractmethod
    def reduce(self, values: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """All-reduce over the data-parallel ranks; returns a new tensor."""

    @abstractmethod
    def layout(self) -> Layout:
        """Where the parameters' elements lie; each rank knows the whole layout."""

    @abstractmethod
    def views(self) -> Mapping[str, Tensor]:
        """This rank's parameter storage by the keys of its layout; no copies."""

    @property
    def extra_bytes(self) -> int:
        """Bytes of :meth:`views` that exist beside the weights that are trained."""
        return 0

    def release_views(self) -> None:
        """Give that storage back, which nobody uses now; :meth:`views` makes it again."""

    def adapters(self) -> Adapters | None:
        """The low-rank adapters that are trained; None where the whole model is.

        :meth:`views` are weights with adapters merged, :meth:`base_views` without.
        """
        return None

    def base_views(self) -> Mapping[str, Tensor]:
        """:meth:`views` without adapters."""
        return self.views()

    def adapter_views(self) -> Mapping[str, Tensor]:
        """This rank's storage of the adapters by the keys of their layout; no copies."""
        return {}

    def without_adapters(self) -> Strategy:
        """The frozen base as a model that is not trained, on the same weights.

        Raises ConfigError where there are no adapters.
        """
        raise ConfigError(f"{type(self).__name__} trains no adapters")

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write this rank's boxes of weights and optimiser state, schedule and RNG."""

    def staged_save(self, directory: Path) -> Callable[[], None]:
        """Copy what :meth:`save` writes to the host; what is returned writes the copy.

        It may be called in another thread while training goes on. Raises NotImplementedError
        where a strategy can only :meth:`save`, as here.
        """
        raise NotImplementedError

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Read what :meth:`save` wrote, under another number of ranks too."""

    @abstractmethod
    def export(self, directory: Path) -> None:
        """Write a Hugging Face directory (rank 0 writes, every rank takes part)."""

    def export_adapters(self, directory: Path) -> None:
        """Write the adapters alone, as peft reads them (rank 0 writes, every rank takes part).

        Raises ConfigError where there are none.
        """
        raise ConfigError(f"{type(self).__name__} trains no adapters")

    def offload(self) -> None:
        """Move weights, gradients and optimiser state to the host."""

    def onload(self) -> None:
        """The reverse of :meth:`offload`."""

    def close(self) -> None:
        """Give back process groups and memory."""
