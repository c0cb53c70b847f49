"""Requests in, sampled tokens with log-probabilities out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlframe.errors import SyncError
from rlframe.interfaces.checkpoint import BaseWeights
from rlframe.interfaces.strategy import RankInfo
from rlframe.layout import Layout, Plan
from rlframe.protocol import Mesh
from rlframe.requests import Completion, Request

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.config import ModelConfig
    from rlframe.interfaces.checkpoint import Transport

__all__ = ["RolloutEngine", "RolloutSpec"]


@dataclass(frozen=True)
class RolloutSpec:
    """What a rollout engine serves: a Hugging Face directory, its dtype, seed and limits.

    Weights come from :meth:`RolloutEngine.load`; ``path`` gives config and tokenizer.
    """

    path: str
    model: ModelConfig
    seed: int = 0
    device: str = "cpu"
    max_prompt_tokens: int = 0
    """Longest prompt, tokens; 0 is unknown."""
    max_new_tokens: int = 0
    """Longest response, tokens; 0 is unknown."""
    concurrency: int = 0
    """Requests that the run keeps open at most; 0 is unknown."""


class RolloutEngine(ABC):
    """Generates for many requests at once; called from one asyncio loop.

    Log-probabilities are in nats under the distribution that was sampled from (temperature and
    truncation applied); greedy tokens carry the model's own at temperature 1. A stop token or stop
    string stays in the response with its tokens.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What a conformance kit may test.

    "seed": a request with a seed gets the same response again, alone or not, up to rounding of the
    logits; "batch-invariant": option ``batch_invariant`` makes that bit-equal; "stop-strings";
    "min-p"; "pause"; "in-flight": ``load`` while requests run; "sleep"; "replay": responses come
    from a record, nothing is sampled.
    """

    config: Any
    rank: RankInfo
    """Which of its group's workers holds this engine; set by the worker."""

    def __init__(self, config: Any, spec: RolloutSpec) -> None:
        self.config = config
        self.spec = spec
        self.rank = RankInfo()
        self._fetched: BaseWeights | None = None
        self._served: BaseWeights | None = None

    @classmethod
    def mesh_of(cls, config: Any, world: int, trained: Mesh | None) -> Mesh:
        """The mesh of the rollout role over the ``world`` ranks of its pool; a mapper asks.

        ``trained`` is the policy's where both share the pool. Raises ConfigError for sizes that do
        not divide.
        """
        return Mesh(dp=world)

    @abstractmethod
    async def generate(self, request: Request) -> Completion:
        """Sample one response; concurrent calls are batched. Raises ``RolloutError``."""

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """End a request: its ``generate`` returns what it has, ``finish_reason='abort'``."""

    @abstractmethod
    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Take weights by canonical name, sharing their storage where the engine can."""

    @abstractmethod
    def layout(self, params: Layout) -> Layout:
        """The layout that this engine wants, given the trainer's."""

    def fetch_weights(
        self, transport: Transport, plan: Plan, version: int, receipts: Sequence[Any]
    ) -> int:
        """Take a staged version beside the one that serves; bytes received. Raises SyncError.

        The plan's last ranks are the replicas'.
        """
        first = plan.target.world - self.rank.world
        base = None
        if self._served is not None and self._served.version == self.version:
            base = self._served
        fetched = transport.fetch(plan, first + self.rank.rank, version, receipts, base)
        self._fetched = BaseWeights(version, fetched.tensors)
        return fetched.nbytes

    def flip_weights(self, version: int) -> None:
        """Serve what :meth:`fetch_weights` took. Raises SyncError for another version."""
        if self._fetched is None or self._fetched.version != version:
            raise SyncError(f"version {version} is not staged on rollout rank {self.rank.rank}")
        self._served, self._fetched = self._fetched, None
        self.load(version, self._served.tensors)

    @property
    @abstractmethod
    def version(self) -> int:
        """The weight version that samples now; -1 before the first ``load``."""

    def pause(self, mode: Literal["keep", "abort"] = "keep") -> None:
        """Stop between two tokens: keep running requests waiting, or abort them."""
        raise NotImplementedError(f"{type(self).__name__} does not claim 'pause'")

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        raise NotImplementedError(f"{type(self).__name__} does not claim 'pause'")

    def sleep(self, level: int = 1) -> None:
        """Release the KV cache (1), or weights too (2)."""

    def wake(self) -> None:
        """The reverse of :meth:`sleep`."""

    def stats(self) -> Mapping[str, float]:
        """Counters since the start: requests, prompt_tokens, response_tokens, busy_s, ..."""
        return {}

    def close(self) -> None:
        """Give back memory and processes."""
