"""``checkpoint.verify`` names what a replica has wrong; late replicas; parts that come damaged."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
import torch

from rlframe.calling.protocol import protocol_of
from rlframe.config import ModelConfig
from rlframe.errors import ConfigError, SyncError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.interfaces.strategy import RankInfo
from rlframe.weights.checksums import checksums
from rlframe.weights.layout import Layout
from rlframe_plugins.checkpoint.transport import TransportCheckpoint
from rlframe_plugins.checkpoint.verify import Verifier
from rlframe_plugins.resharders.gather_all import GatherAll
from rlframe_plugins.resharders.zero_redundancy import ZeroRedundancy
from tests.unit.plugins.checkpoint.fake_group import FakeGroup
from tests.unit.plugins.checkpoint.test_transport import (
    RESHARDERS,
    SOURCE,
    FakeRollout,
    FakeTrainer,
    connect,
    of,
    pools,
    rows,
    weights,
)


class Trainer(FakeTrainer):
    def checksums(self, queries: Any) -> list[int]:
        return checksums(queries, self.views)


class Group(FakeGroup):
    """Gives each member its own argument where the protocol says so."""

    def call(self, method: str, *args: Any) -> Future[Any]:
        if method != "checksums":
            return super().call(method, *args)
        future: Future[Any] = Future()
        try:
            found = [m.checksums(one) for m, one in zip(self.members, args[0], strict=True)]
            future.set_result(found)
        except Exception as error:  # noqa: BLE001
            future.set_exception(error)
        return future


class Replica(FakeRollout):
    def weights(self) -> dict[str, torch.Tensor]:
        return self.tensors


class HalfReplica(Replica):
    """Rank r holds the rows that trainer r holds."""

    def layout(self, params: Layout) -> Layout:
        return Layout(params.params, (rows(0), rows(1)))


def engines(kind: type[FakeRollout] = Replica, count: int = 2):
    replicas = []
    for rank in range(count):
        replica = kind(None, RolloutSpec("", ModelConfig(path="none")))
        replica.rank = RankInfo(rank, count)
        replicas.append(replica)
    return [Trainer(0), Trainer(1)], replicas


def joined(engine, trainers, replicas, resharder=RESHARDERS[0]):
    plan = resharder.plan(*engine.layouts(SOURCE, replicas[0].layout(SOURCE)))
    engine.prepare(plan, Group("policy", trainers), Group("rollout", replicas))


def test_engines_are_asked_rank_by_rank():
    assert protocol_of(FakeRollout.checksums).name == "ALL_TO_ALL"


@pytest.mark.parametrize("kind", [Replica, HalfReplica])
@pytest.mark.parametrize("resharder", [ZeroRedundancy(ZeroRedundancy.Config()), GatherAll()])
def test_the_parameter_that_differs_is_named_with_its_rank(kind, resharder, tmp_path):
    trainers, replicas = engines(kind)
    engine = of(tmp_path, verify=1)
    joined(engine, trainers, replicas, resharder)
    for step in (1, 2):
        for trainer in trainers:
            trainer.train(step)
        engine.publish(step)
    load = Replica.load

    def stale(version, tensors):
        """As an engine whose second rank keeps a copy of one tensor."""
        load(replicas[1], version, {**tensors, "b": weights(0)["b"][-len(tensors["b"]) :]})

    replicas[1].load = stale
    with pytest.raises(SyncError, match=r"version 3: rank 1 of the rollout .* 'b'\[.*\] differs$"):
        engine.publish(3)


def test_it_is_asked_for_every_so_many_versions(tmp_path):
    trainers, replicas = engines()
    engine = of(tmp_path, verify=3)
    joined(engine, trainers, replicas)
    replicas[0].weights = lambda: {n: t + 1 for n, t in replicas[0].tensors.items()}
    engine.publish(1)
    engine.publish(2)
    with pytest.raises(SyncError, match="'a'.* differs and 1 more of 2"):
        engine.publish(3)
    engine.publish(4)


def test_ranks_that_train_and_generate_are_the_same_ones():
    """``first`` 0: as hybrid asks, where both sides are one group of ranks."""
    trainers, replicas = engines(HalfReplica)
    plan = RESHARDERS[0].plan(SOURCE, replicas[0].layout(SOURCE))
    for trainer, replica in zip(trainers, replicas, strict=True):
        replica.load(1, trainer.views)
    verifier = Verifier(plan, Group("policy", trainers), Group("rollout", replicas))
    verifier.check(1)
    replicas[0].tensors["a"] = replicas[0].tensors["a"].clone()
    replicas[0].tensors["a"][1, 2] += 1e-4
    with pytest.raises(SyncError, match=r"rank 0 .* 'a'\[0:2, 0:3\] differs$"):
        verifier.check(1)


def test_an_engine_that_cannot_show_its_weights_says_so(tmp_path):
    trainers, replicas = engines(FakeRollout)
    engine = of(tmp_path, verify=1)
    joined(engine, trainers, replicas)
    with pytest.raises(ConfigError, match="FakeRollout cannot show .* checkpoint.verify=0"):
        engine.publish(1)


# --- late replicas --------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["full", "delta"])
def test_a_late_replica_gets_the_whole_current_version_and_nobody_else_does(codec, tmp_path):
    trainers, replicas = engines()
    engine = of(tmp_path, codec=codec)
    joined(engine, trainers, replicas)
    with pytest.raises(SyncError, match="no version was published yet"):
        engine.join()
    for step in (1, 2):
        trainers[0].views["a"][0, 0] = float(step)
        engine.publish(step)
    served = replicas[0].tensors
    late = engines()[1][1]
    replicas[1] = late
    engine._targets.members[1] = late
    assert engine.join() == 12 * 4 + 5 * 2
    assert (late.version, replicas[0].version) == (2, 2)
    assert replicas[0].tensors["a"] is served["a"]
    assert torch.equal(late.tensors["a"], replicas[0].tensors["a"])
    trainers[0].views["a"][0, 0] = 9.0
    moved = engine.publish(3).bytes_moved
    assert [r.tensors["a"][0, 0].item() for r in replicas] == [9.0, 9.0]
    whole = 2 * (12 * 4 + 5 * 2)
    assert moved == whole if codec == "full" else moved < whole


def test_a_restarted_replica_does_not_end_the_run(tmp_path):
    """It has no version that a delta could build on: all get the next one whole, with a note."""
    trainers, replicas = engines()
    engine = of(tmp_path, codec="delta")
    joined(engine, trainers, replicas)
    engine.publish(1)
    engine._targets.members[0] = engines()[1][0]
    trainers[0].views["a"][0, 0] = 7.0
    stats = engine.publish(2)
    assert stats.bytes_moved == 2 * (12 * 4 + 5 * 2)
    assert "this replica has nothing; it is sent again" in stats.notes[0]
    assert [r.version for r in engine._targets.members] == [2, 2]


# --- chaos: damage on the way ---------------------------------------------------------------------


def damage(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(3)
        byte = file.read(1)[0]
        file.seek(3)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("transport", ["shm", "disk"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_bucket_that_is_damaged_between_stage_and_fetch(transport, times, tmp_path):
    """Once: it is sent again and the run goes on. Always: clear error, the old version serves."""
    trainers, replicas = engines()
    engine = of(tmp_path, transport)
    joined(engine, trainers, replicas)
    engine.publish(1)
    stage, left = trainers[1].stage_weights, [times]

    def damaged(transport, plan, version, full):
        receipts = stage(transport, plan, version, full)
        if left[0]:
            left[0] -= 1
            damage(receipts[0].path)
        return receipts

    trainers[1].stage_weights = damaged
    for trainer in trainers:
        trainer.train(2)
    if times == 1:
        stats = engine.publish(2)
        assert stats.notes == ("version 2: the part of rank 1 is damaged; it is sent again",)
        assert all(torch.equal(r.tensors["a"], weights(2)["a"]) for r in replicas)
    else:
        with pytest.raises(SyncError, match="version 2: the part of rank 1 is damaged"):
            engine.publish(2)
        assert [r.version for r in replicas] == [1, 1]
        assert all(torch.equal(r.tensors["a"], weights(0)["a"]) for r in replicas)
        engine.publish(3)
        assert [r.version for r in replicas] == [3, 3]


def test_no_retry_without_a_reason_that_it_could_mend(tmp_path):
    trainers, replicas = pools()
    engine = of(tmp_path, retries=0)
    connect(engine, trainers, replicas, RESHARDERS[0])
    calls = []

    def broken(*args):
        calls.append(args)
        raise SyncError("no room")

    replicas[1].fetch_weights = broken
    with pytest.raises(SyncError, match="no room"):
        engine.publish(1)
    assert len(calls) == 1


def test_options_have_ranges():
    for bad in ({"retries": -1}, {"verify": -1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            TransportCheckpoint.Config(**bad)
