"""What the Orchestrator sees of a model role. Each worker of the role's group holds one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlframe.algorithm import RoleSpec
from rlframe.calling.protocol import (
    ALL_TO_ALL,
    DP_METRIC,
    ONE_TO_ALL,
    ONE_TO_ONE,
    THREE_D_PROTO,
    protocol,
)
from rlframe.errors import ConfigError
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.recording.memory import device_peak_gb, peak_memory_gb
from rlframe.recording.mfu import device_peak
from rlframe.recording.profiling import TorchProfile
from rlframe.weights.layout import Layout, Plan

if TYPE_CHECKING:
    from rlframe.batching.batch import Batch
    from rlframe.batching.packed import Packed
    from rlframe.batching.plan import UpdatePlan
    from rlframe.config import Selected
    from rlframe.interfaces.checkpoint import AfterGeneration, HandedOver, Transport
    from rlframe.weights.adapters import Adapters
    from rlframe.weights.checksums import Query

__all__ = ["EngineSpec", "ModelEngine", "UpdateResult"]


@dataclass(frozen=True)
class EngineSpec:
    """Everything a worker needs to set up one role; resolved there from targets, not pickled."""

    role: RoleSpec
    model: ModelSpec
    strategy: Selected
    algorithm: Selected
    tokens_per_microbatch: int
    max_grad_norm: float = 1.0
    max_response_tokens: int = 0
    """Constant of the fixed-length reduction, tokens."""
    tokens_of: str = ""
    """Model whose tokens a batch holds, where the role may have a tokenizer of its own."""
    base_of: str = ""
    """Role of the same workers whose model without its adapters is this role's: none is built."""


@dataclass(frozen=True)
class UpdateResult:
    """Metrics of one ``update`` call (already reduced over micro-batches and ranks), by name."""

    metrics: Mapping[str, float]
    optim_steps: int
    skipped: tuple[str, ...] = ()
    """Why steps were skipped: one line each."""
    extra: Mapping[str, Any] = field(default_factory=dict)


class ModelEngine(ABC):
    """One role on one rank: micro-batches, loss terms and their denominators over a Strategy."""

    peers: Mapping[str, Any]
    """The other engines of this worker by role, the rollout engine included."""

    def __init__(self, rank: RankInfo) -> None:
        self.rank = rank
        self.peers = {}
        self._profile: TorchProfile | None = None

    @abstractmethod
    @protocol(ONE_TO_ALL)
    def setup(self, spec: EngineSpec) -> None:
        """Build strategy, model and a stateless copy of the algorithm."""

    @abstractmethod
    @protocol(THREE_D_PROTO)
    def infer(self, batch: Batch) -> Mapping[str, Packed]:
        """The columns that the role's ``outputs`` name, for every row of this rank's chunk."""

    @abstractmethod
    @protocol(THREE_D_PROTO.keeping("group_ids"))
    def advantages(self, batch: Batch) -> Mapping[str, Packed]:
        """``Algorithm.advantages`` on this rank's chunk (whole groups), sums over all ranks."""

    @abstractmethod
    @protocol(DP_METRIC)
    def update(self, batch: Batch, plan: UpdatePlan) -> UpdateResult:
        """Every optimiser step of the plan, which holds this rank's micro-batches alone."""

    @abstractmethod
    @protocol(DP_METRIC)
    def evaluate(self, batch: Batch, plan: UpdatePlan) -> Mapping[str, float]:
        """Loss terms and figures of the plan's first step by name, without an update."""

    @abstractmethod
    @protocol(ONE_TO_ALL)
    def layout(self) -> Layout:
        """The strategy's layout."""

    @abstractmethod
    @protocol(ONE_TO_ALL)
    def prepare_hand_over(
        self,
        target: str,
        plan: Plan,
        copy: bool,
        bucket_mib: int,
        after: AfterGeneration = "keep",
    ) -> None:
        """Get ready to give the peer engine ``target`` its weights by ``plan``, in buckets.

        Where the plan needs no move both share storage, unless ``copy`` asks for a second buffer.
        ``after`` says what the peer gives back when :meth:`phase` ends its generation.
        """

    @abstractmethod
    @protocol(ONE_TO_ALL)
    def hand_over(self, target: str, version: int) -> HandedOver:
        """Load this rank's part of the weights into a peer engine as ``version``."""

    @abstractmethod
    @protocol(ONE_TO_ONE)
    def listen_for_replicas(self, transport: Transport) -> Any:
        """``transport.listen`` on the first rank."""

    @abstractmethod
    @protocol(ONE_TO_ALL)
    def stage_weights(self, transport: Transport, plan: Plan, version: int, full: bool) -> Any:
        """Offer this rank's part of ``version`` to replicas in other pools; a receipt."""

    @abstractmethod
    @protocol(ALL_TO_ALL)
    def checksums(self, queries: Sequence[Query]) -> list[int]:
        """``rlframe.weights.checksums`` of this rank's weights, one number a query."""

    @abstractmethod
    @protocol(ONE_TO_ALL)
    def phase(self, phase: Literal["train", "generate", "idle"]) -> None:
        """Make room for what comes next (offload, release caches); bring back what it needs."""

    @abstractmethod
    @protocol(ONE_TO_ALL)
    def save(self, directory: Path) -> None:
        """Write this role's part of a snapshot."""

    @protocol(ONE_TO_ALL)
    def begin_save(self, directory: Path) -> None:
        """Copy what :meth:`save` writes and write it while this engine goes on.

        Engines that cannot do that have written everything when they return, as here.
        """
        self.save(directory)

    @protocol(ONE_TO_ALL)
    def end_save(self) -> None:
        """Wait until all that :meth:`begin_save` began is written; raises what that raised."""

    @abstractmethod
    @protocol(ONE_TO_ALL)
    def load(self, directory: Path) -> None:
        """Read this role's part of a snapshot."""

    @abstractmethod
    @protocol(ONE_TO_ALL)
    def export(self, directory: Path) -> None:
        """Write a Hugging Face directory."""

    @protocol(ONE_TO_ALL)
    def stage_part(
        self,
        transport: Transport,
        plan: Plan,
        version: int,
        full: bool,
        part: Literal["base", "adapters"],
    ) -> Any:
        """:meth:`stage_weights` for the frozen base, or for the adapters alone."""
        raise ConfigError(f"{type(self).__name__} trains no adapters")

    @protocol(ONE_TO_ALL)
    def export_adapters(self, directory: Path) -> None:
        """Write the adapters alone, as peft reads them. Raises ConfigError where there are none."""
        raise ConfigError(f"{type(self).__name__} trains no adapters")

    @protocol(ONE_TO_ALL)
    def adapters(self) -> Adapters | None:
        """The adapters that are trained; None where the whole model is."""
        return None

    @protocol(ONE_TO_ALL)
    def peak_flops(self) -> float:
        """Operations a second that this rank's device can do, 0 where that is not known."""
        return device_peak(self.rank.device)

    @protocol(ONE_TO_ALL)
    def peak_memory(self) -> tuple[float, float]:
        """The most that this process and its device have held, GB; the second is 0 on a CPU."""
        return peak_memory_gb(), device_peak_gb(self.rank.device)

    @protocol(ONE_TO_ALL)
    def profile(self, folder: Path | None) -> None:
        """Begin a profile of this process; with a folder end it, and write this rank's trace."""
        if folder is None:
            self._profile = TorchProfile()
        elif self._profile is not None:
            self._profile.write(folder / f"rank-{self.rank.rank}.json")
            self._profile = None

    @protocol(ONE_TO_ALL)
    def close(self) -> None:
        """Give back memory and process groups."""
