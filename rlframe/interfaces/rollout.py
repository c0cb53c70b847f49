"""Requests in, sampled tokens with log-probabilities out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlframe.calling.protocol import ALL_TO_ALL, Mesh, protocol
from rlframe.errors import ConfigError, SyncError
from rlframe.interfaces.checkpoint import BaseWeights
from rlframe.interfaces.strategy import RankInfo
from rlframe.requests import Completion, Request
from rlframe.weights.layout import Layout, ParamInfo, Plan
from rlframe.weights.sharding import Grouping, generation_place

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.config import ModelConfig
    from rlframe.interfaces.checkpoint import Transport
    from rlframe.weights.adapters import Adapters
    from rlframe.weights.checksums import Query
    from rlframe.weights.replica_adapters import ReplicaAdapters

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
    mesh: Mesh | None = None
    """How the ranks of its pool form generation replicas; None makes each rank one."""
    grouping: Grouping = "strided"
    """Which ranks of a training replica form one, as the resharder wants it."""

    def replicas(self, world: int) -> tuple[tuple[int, ...], ...]:
        """Ranks of each generation replica; the first takes requests (3D_ALL_MICRO_DP's)."""
        mesh = self.mesh or Mesh(dp=world)
        found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for rank in range(mesh.size):
            stage, index = generation_place(mesh, rank, self.grouping)
            inside = rank % (mesh.pp * mesh.tp)
            adjacent = inside // (mesh.pg * mesh.tg)
            number = mesh.mdp_rank(rank) if self.grouping == "strided" else adjacent
            members = found.setdefault((mesh.dp_rank(rank), number), [])
            members.append((-stage, index, rank))
        return tuple(tuple(rank for *_, rank in sorted(found[key])) for key in sorted(found))


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

    takes_weights: ClassVar[bool] = True
    """Whether :meth:`load` can work; an engine without that evaluates what others serve."""
    config: Any
    rank: RankInfo
    """Which of its group's workers holds this engine; set by the worker."""

    def __init__(self, config: Any, spec: RolloutSpec) -> None:
        self.config = config
        self.spec = spec
        self.rank = RankInfo()
        self._fetched: BaseWeights | None = None
        self._served: BaseWeights | None = None
        self._adapted: ReplicaAdapters | None = None

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
        self,
        transport: Transport,
        plan: Plan,
        version: int,
        receipts: Sequence[Any],
        late: bool = False,
    ) -> int:
        """Take a staged version beside the one that serves; bytes received. Raises SyncError.

        The plan's last ranks are the replicas'. ``late`` asks only those that don't serve it yet.
        """
        if late and self.version == version and not transport.together:
            return 0
        first = plan.target.world - self.rank.world
        base = None
        if self._served is not None and self._served.version == self.version:
            base = self._served
        fetched = transport.fetch(plan, first + self.rank.rank, version, receipts, base)
        self._fetched = BaseWeights(version, fetched.tensors)
        return fetched.nbytes

    def fetch_base(
        self,
        transport: Transport,
        plan: Plan,
        served: Mapping[str, ParamInfo],
        version: int,
        receipts: Sequence[Any],
        late: bool = False,
    ) -> int:
        """Take the frozen base that adapters are added to; bytes received. Raises SyncError.

        It comes in the trainer's types; ``served`` names those that weights have here.
        """
        from rlframe.weights.replica_adapters import ReplicaAdapters

        if late and self.version == version and not transport.together:
            return 0
        mine = plan.target.world - self.rank.world + self.rank.rank
        fetched = transport.fetch(plan, mine, version, receipts, None)
        self._adapted = ReplicaAdapters(plan, mine, fetched.tensors, served)
        return fetched.nbytes

    def fetch_adapters(
        self,
        transport: Transport,
        plan: Plan,
        adapters: Adapters,
        version: int,
        receipts: Sequence[Any],
        late: bool = False,
    ) -> int:
        """:meth:`fetch_weights` for adapters alone: they are merged into the base, beside it."""
        if late and self.version == version and not transport.together:
            return 0
        if self._adapted is None:
            raise SyncError(f"rollout rank {self.rank.rank} has no base to add adapters to")
        fetched = self._adapted.fetch(transport, plan, adapters, version, receipts, self.version)
        self._fetched = BaseWeights(version, fetched.tensors)
        return fetched.nbytes

    def flip_weights(self, version: int, late: bool = False) -> None:
        """Serve what :meth:`fetch_weights` took. Raises SyncError for another version."""
        if late and self.version == version:
            self._fetched = None
            return
        if self._fetched is None or self._fetched.version != version:
            raise SyncError(f"version {version} is not staged on rollout rank {self.rank.rank}")
        self._served, self._fetched = self._fetched, None
        self.load(version, self._served.tensors)

    def weights(self) -> Mapping[str, Tensor]:
        """What this rank computes with now, by canonical name: its shards where it has those.

        Of use to ``checkpoint.verify`` only if it is read from where it is used. Raises ConfigError
        where an engine cannot show it.
        """
        raise ConfigError(
            f"{type(self).__name__} cannot show the weights that it computes with: use "
            "checkpoint.verify=0"
        )

    @protocol(ALL_TO_ALL)
    def checksums(self, queries: Sequence[Query]) -> list[int]:
        """``rlframe.weights.checksums`` of :meth:`weights`, one number a query."""
        from rlframe.weights.checksums import checksums

        return checksums(queries, self.weights(), named=True)

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
        """Counters since the start: requests, prompt_tokens, response_tokens, busy_s, ...

        They never fall; the figures of a step are what they grew by.
        """
        return {}

    def gauges(self) -> Mapping[str, float]:
        """How things stand now: running, waiting, kv_used_tokens, kv_total_tokens, ...

        Sums over replicas mean something, differences over time do not.
        """
        return {}

    def routed(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Counters and gauges of the router in this process that deals requests to replicas.

        Of a role's client alone; what an engine routes to its servers is in its own figures.
        """
        return {}, {}

    def close(self) -> None:
        """Give back memory and processes."""
