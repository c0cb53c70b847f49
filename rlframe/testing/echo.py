"""An engine without a model, for tests of clusters: it tells who it is, and fails on demand."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlframe.batching.packed import Packed
from rlframe.calling.protocol import DP_METRIC, ONE_TO_ALL, ONE_TO_ONE, protocol
from rlframe.errors import TrainingError
from rlframe.interfaces.checkpoint import HandedOver
from rlframe.interfaces.model import EngineSpec, ModelEngine, UpdateResult
from rlframe.interfaces.transfer import Produced
from rlframe.weights.layout import Layout

if TYPE_CHECKING:
    from rlframe.batching.batch import Batch
    from rlframe.batching.plan import UpdatePlan
    from rlframe.interfaces.checkpoint import AfterGeneration, Transport
    from rlframe.weights.checksums import Query
    from rlframe.weights.layout import Plan

__all__ = ["Counter", "EchoEngine"]


class EchoEngine(ModelEngine):
    """Every call does the least that shows that it arrived."""

    def setup(self, spec: EngineSpec) -> None:
        """Remember the role."""
        self.role, self.seen = spec.role.name, []

    seen: list[Any]

    @protocol(ONE_TO_ALL)
    def who(self) -> dict[str, Any]:
        """What the cluster told this rank, and what it runs in."""
        import torch

        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "role": self.role,
            "peers": sorted(self.peers),
            "threads": torch.get_num_threads(),
            "drawn": (random.random(), float(np.random.rand()), float(torch.rand(()))),
        }

    @protocol(ONE_TO_ONE)
    def echo(self, value: Any) -> Any:
        """The same again."""
        return value

    @protocol(ONE_TO_ALL)
    def nothing(self) -> None:
        """The cheapest call there is."""

    @protocol(ONE_TO_ALL)
    def note(self, value: Any) -> list[Any]:
        """Remember a value; everything that was noted so far, in this process."""
        for peer in self.peers.values():
            if isinstance(peer, EchoEngine):
                peer.seen.append(value)
        return list(self.seen)

    def infer(self, batch: Batch) -> Mapping[str, Packed]:
        """Column ``values``: twice the ids of the responses; ``scores``: their number."""
        ids = batch.packed("response_ids")
        assert ids.lengths is not None
        return {
            "values": Packed((2 * ids.values).astype(np.float32), ids.lengths),
            "scores": Packed(ids.lengths.astype(np.float32)),
        }

    @protocol(DP_METRIC)
    def rows(self, batch: Batch) -> list[int]:
        """Group ids of this rank's chunk."""
        return [int(i) for i in batch["group_ids"]]

    @protocol(ONE_TO_ALL)
    def fail(self, kind: Literal["python", "rlframe"], rank: int) -> None:
        """Raise on one rank."""
        if self.rank.rank == rank:
            if kind == "rlframe":
                raise TrainingError("told to fail")
            raise LookupError("told to fail")

    @protocol(ONE_TO_ALL)
    def die(self, rank: int) -> None:
        """Kill this process on one rank; the others hang as in a collective."""
        if self.rank.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        self.hang_in_a_loop(120.0)

    @protocol(ONE_TO_ALL)
    def hang(self, seconds: float) -> None:
        """Be late."""
        self.hang_in_a_loop(seconds)

    def hang_in_a_loop(self, seconds: float) -> None:
        """Its name shows in stacks."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)

    @protocol(ONE_TO_ALL)
    def meet(self, mine: str, other: str, seconds: float) -> bool:
        """Write one file and wait for the other: whether it came."""
        Path(mine).touch()
        end = time.monotonic() + seconds
        while not Path(other).exists():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def advantages(self, batch: Batch) -> Mapping[str, Packed]:
        """As ``infer``."""
        return self.infer(batch)

    def update(self, batch: Batch, plan: UpdatePlan) -> UpdateResult:
        """Count the rows of the plan."""
        rows = sum(len(m) for step in plan.minibatches for rank in step.micros for m in rank)
        return UpdateResult({"rows": float(rows)}, len(plan.minibatches))

    def evaluate(self, batch: Batch, plan: UpdatePlan) -> Mapping[str, float]:
        """The number of rows."""
        return {"rows": float(len(batch))}

    def layout(self) -> Layout:
        """No parameters."""
        return Layout({}, ((),) * self.rank.world)

    def prepare_hand_over(
        self,
        target: str,
        plan: Plan,
        copy: bool,
        bucket_mib: int,
        after: AfterGeneration = "keep",
    ) -> None:
        """Nothing."""

    def hand_over(self, target: str, version: int) -> HandedOver:
        """Nothing."""
        return HandedOver()

    def listen_for_replicas(self, transport: Transport) -> Any:
        """Nothing: there are no weights."""

    def stage_weights(self, transport: Transport, plan: Plan, version: int, full: bool) -> Any:
        """Nothing."""

    def checksums(self, queries: Sequence[Query]) -> list[int]:
        """Nothing."""
        return []

    def phase(self, phase: Literal["train", "generate", "idle"]) -> None:
        """Nothing."""

    def save(self, directory: Path) -> None:
        """Nothing."""

    def load(self, directory: Path) -> None:
        """Nothing."""

    def export(self, directory: Path) -> None:
        """Nothing."""


class Counter:
    """A plain object to host: counts, and makes columns."""

    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, amount: int) -> int:
        """The new value."""
        self.value += amount
        return self.value

    def pid(self) -> int:
        """The process that it lives in."""
        return os.getpid()

    def columns(self, rows: int) -> Produced:
        """A value and two columns."""
        lengths = np.arange(1, rows + 1, dtype=np.int64)
        ids = np.arange(int(lengths.sum()), dtype=np.int64)
        scores = Packed(np.arange(rows, dtype=np.float32))
        return Produced(self.value, {"response_ids": Packed(ids, lengths), "scores": scores})
