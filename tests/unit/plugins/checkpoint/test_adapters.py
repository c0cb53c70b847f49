"""Adapters alone from a trainer to replicas in another pool, which merge them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlframe.algorithm import Output
from rlframe.config import LoraConfig, ModelConfig, OptimConfig
from rlframe.errors import SyncError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import random_micro, tiny_model
from rlframe.weights.layout import Box, Layout, LocalView, ParamInfo, Piece, strides
from rlframe.weights.storage import dtypes, local_view
from rlframe_plugins.checkpoint.adapters import AdapterSync
from rlframe_plugins.checkpoint.transport import TransportCheckpoint
from rlframe_plugins.resharders.zero_redundancy import ZeroRedundancy
from rlframe_plugins.transports.collective import CollectiveTransport
from rlframe_strategies.engine import CausalLMEngine
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.single import SingleStrategy
from tests.unit.plugins.checkpoint.fake_group import FakeGroup


class Replica(RolloutEngine):
    """Two ranks that cut every matrix by its columns, and keep what they were given."""

    _version = -1
    shown: Mapping[str, torch.Tensor]

    def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self._version, self.shown = version, tensors

    def layout(self, params: Layout) -> Layout:
        return Layout(params.params, tuple(columns(params.params, rank) for rank in range(2)))

    @property
    def version(self) -> int:
        return self._version

    def abort(self, request_id: str) -> None: ...

    async def generate(self, request: Any) -> Any: ...


def columns(params: Mapping[str, ParamInfo], rank: int) -> tuple[Piece, ...]:
    pieces = []
    for name, info in params.items():
        half = info.shape[-1] // 2
        size = (*info.shape[:-1], half if rank == 0 else info.shape[-1] - half)
        offset = (0,) * (len(size) - 1) + (rank * half,)
        pieces.append(Piece(name, Box(offset, size), LocalView(name, 0, strides(size))))
    return tuple(pieces)


class Pools:
    """A trainer with adapters and two replicas."""

    def __init__(self, path: Path, dtype: str = "auto", **options: Any) -> None:
        model = ModelConfig(
            path=str(path), lora=LoraConfig(rank=2, targets=("q_proj", "down_proj"))
        )
        self.strategy = SingleStrategy(SingleStrategy.Config(), RankInfo())
        self.strategy.build(ModelSpec(str(path), model, optim=OptimConfig(lr=0.1), optim_steps=9))
        trainer = CausalLMEngine(RankInfo())
        trainer._own = self.strategy
        self.replicas = []
        for rank in range(2):
            self.replicas.append(Replica(None, RolloutSpec("", model)))
            self.replicas[-1].rank = RankInfo(rank, 2)
        self.trainers, self.targets = (
            FakeGroup("policy", [trainer]),
            FakeGroup("rollout", self.replicas),
        )
        config = TransportCheckpoint.Config(directory=str(path), retries=0, **options)
        self.engine = TransportCheckpoint(config)
        source = trainer.layout()
        self.target = self.replicas[0].layout(source).typed(dtype)
        plan = ZeroRedundancy(ZeroRedundancy.Config()).plan(
            *self.engine.layouts(source, self.target)
        )
        adapters = trainer.adapters()
        assert adapters is not None
        self.engine.use_adapters(adapters)
        self.engine.prepare(plan, self.trainers, self.targets)

    def train(self) -> None:
        self.strategy.forward_backward([random_micro()], ("logprobs",), _loss)
        self.strategy.step(1.0)

    def agree(self) -> bool:
        """Whether every element of every replica is the trainer's, bit by bit."""
        types = dtypes(self.target.params)
        mine = {name: view.to(types[name]) for name, view in self.strategy.views().items()}
        return all(
            torch.equal(local_view(p, replica.shown[p.view.key]), mine[p.name][p.box.slices()])
            for rank, replica in enumerate(self.replicas)
            for p in self.target.ranks[rank]
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


@pytest.mark.parametrize("codec", ["full", "delta"])
@pytest.mark.parametrize("transport", ["shm", "disk"])
def test_after_every_version_replicas_compute_with_the_trainer_s_weights(
    path: Path, codec: str, transport: str
) -> None:
    pools = Pools(path, codec=codec, transport=transport)
    sizes = []
    for version in range(1, 4):
        pools.train()
        sizes.append(pools.engine.publish(version).bytes_moved)
        assert [one.version for one in pools.replicas] == [version] * 2
        assert pools.agree()
    low = sum(t.numel() * t.element_size() for t in pools.strategy.adapter_views().values())
    assert sizes[0] > sum(v.numel() * 4 for v in pools.strategy.base_views().values())
    assert max(sizes[1:]) <= 2 * low
    assert codec == "delta" or sizes[1] == sizes[2] == 2 * low
    pools.engine.close()


def test_weights_that_serve_in_a_lower_type_are_rounded_as_the_trainer_s_are(path: Path) -> None:
    pools = Pools(path, dtype="bfloat16")
    for version in (1, 2):
        pools.train()
        pools.engine.publish(version)
        assert pools.agree()
    assert {t.dtype for t in pools.replicas[0].shown.values()} == {torch.bfloat16}
    pools.engine.close()


def test_merged_weights_travel_where_adapters_must_not(path: Path) -> None:
    pools = Pools(path, adapters_alone=False)
    for version in (1, 2):
        pools.train()
        pools.engine.publish(version)
        assert pools.agree()
    assert "fetch_adapters" not in pools.targets.called
    pools.engine.close()


def test_damage_leaves_the_old_version_serving_and_the_base_comes_again(path: Path) -> None:
    pools = Pools(path)
    pools.train()
    pools.engine.publish(1)
    before = {k: t.clone() for k, t in pools.replicas[1].shown.items()}
    pools.train()
    fetch, pools.replicas[1].fetch_adapters = pools.replicas[1].fetch_adapters, broken  # type: ignore[method-assign]
    with pytest.raises(SyncError, match="damaged"):
        pools.engine.publish(2)
    assert [one.version for one in pools.replicas] == [1, 1]
    assert all(torch.equal(t, before[k]) for k, t in pools.replicas[1].shown.items())
    pools.replicas[1].fetch_adapters = fetch  # type: ignore[method-assign]
    pools.targets.called.clear()
    pools.engine.publish(2)
    assert pools.targets.called == ["fetch_base", "fetch_adapters", "flip_weights"]
    assert pools.agree()
    pools.engine.close()


def broken(*_: Any) -> int:
    raise SyncError("version 2: the part of rank 0 is damaged")


def test_a_late_replica_gets_the_base_and_the_adapters(path: Path) -> None:
    pools = Pools(path)
    pools.train()
    pools.engine.publish(1)
    fresh = Replica(None, pools.replicas[1].spec)
    fresh.rank = RankInfo(1, 2)
    pools.replicas[1] = pools.targets.members[1] = fresh
    pools.engine.join()
    assert fresh.version == 1
    assert pools.agree()
    pools.train()
    pools.engine.publish(2)
    assert pools.agree()
    pools.engine.close()


def test_adapters_without_a_base_are_refused(path: Path) -> None:
    pools = Pools(path)
    with pytest.raises(SyncError, match="no base"):
        pools.replicas[0].fetch_adapters(None, None, None, 1, [])  # type: ignore[arg-type]
    pools.engine.close()


# --- sharded trainers, and a replica that meets them in collectives -----------------------------


def side_of(rank: RankInfo, path: Path) -> Any:
    """A trainer's shard, or a replica."""
    model = ModelConfig(path=str(path), lora=LoraConfig(rank=3))
    if rank.rank == 2:
        return Replica(None, RolloutSpec("", model))
    engine = CausalLMEngine(replace(rank, world=2))
    engine._own = strategy = FSDPStrategy(FSDPStrategy.Config(), engine.rank)
    strategy.build(ModelSpec(str(path), model, optim=OptimConfig(lr=0.1), optim_steps=9))
    return engine


def exchanged(rank: RankInfo, path: Path, folder: Path, versions: int) -> bool:
    """Ranks 0 and 1 train shards, rank 2 serves; what it serves is compared bit by bit."""
    trains, side = rank.rank < 2, side_of(rank, path)
    config = TransportCheckpoint.Config(transport="collective", timeout_s=60.0)
    both = (CollectiveTransport(config), CollectiveTransport(config))
    for name, transport in zip(("base", "low"), both, strict=True):
        transport.key = name
    if rank.rank == 0:
        known = [one.listen(RankInfo(0, 2)) for one in both]
        _write(folder / "known", (known, side.layout(), side.adapters()))
    known, source, adapters = _read(folder / "known")
    for address, transport in zip(known, both, strict=True):
        transport.connect(address)
    layouts = TransportCheckpoint(config).layouts(source, Layout.full(source.params, 1))
    plan = ZeroRedundancy(ZeroRedundancy.Config()).plan(*layouts)
    sync = AdapterSync(adapters, plan, both, FakeGroup("policy", [0, 1]), FakeGroup("rollout", [2]))

    def exchange(_: Any, stage: Any, fetch: Any, late: bool) -> int:
        name, *args = stage if trains else (*fetch, [], late)
        return getattr(side, name)(*args) or 0

    same = True
    for version in range(1, versions + 1):
        if trains:
            side._own.forward_backward([random_micro(seed=rank.rank)], ("logprobs",), _loss)
            side._own.step(1.0)
            whole = dict(side._own.whole_weights())
        sync.move(version, exchange, full=version == 1)
        if rank.rank == 0:
            _write(folder / f"weights-{version}", whole)
        if not trains:
            side.flip_weights(version)
            whole = _read(folder / f"weights-{version}")
            same &= all(torch.equal(side.shown[name], tensor) for name, tensor in whole.items())
    _leave(folder, rank.rank)
    return same


def _leave(folder: Path, rank: int) -> None:
    """Rank 0 serves the stores: it leaves after all others (the harness bounds the wait)."""
    (folder / f"left-{rank}").touch()
    while rank == 0 and any(not (folder / f"left-{r}").exists() for r in (1, 2)):
        time.sleep(0.01)


def _loss(out: Output, micro: Any) -> torch.Tensor:
    total: torch.Tensor = (out.logprobs * micro["weights"]).sum()
    return total


def _write(path: Path, value: Any) -> None:
    torch.save(value, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def _read(path: Path) -> Any:
    while not path.exists():  # the harness bounds the wait
        time.sleep(0.01)
    return torch.load(path, weights_only=False)


@pytest.mark.dist
def test_shards_and_collectives_give_the_exact_weights(path: Path, tmp_path: Path) -> None:
    assert run_ranks(exchanged, 3, path, tmp_path, 3) == [True] * 3
