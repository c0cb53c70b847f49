"""Weights from two trainers to two replicas in another pool, in one process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlframe.config import ModelConfig
from rlframe.errors import ConfigError, SyncError
from rlframe.interfaces.checkpoint import Codec
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.dist import run_ranks
from rlframe.weights.layout import Box, Layout, LocalView, ParamInfo, Piece
from rlframe.weights.storage import allocate, dtypes, local_view
from rlframe_plugins import reaper
from rlframe_plugins.checkpoint.hybrid import HybridCheckpoint
from rlframe_plugins.checkpoint.transport import TransportCheckpoint
from rlframe_plugins.resharders.gather_all import GatherAll
from rlframe_plugins.resharders.zero_redundancy import ZeroRedundancy
from rlframe_plugins.transports.collective import CollectiveTransport
from tests.unit.plugins.checkpoint.fake_group import FakeGroup

PARAMS = {"a": ParamInfo((4, 3), "float32"), "b": ParamInfo((5,), "bfloat16")}
RESHARDERS = [ZeroRedundancy(ZeroRedundancy.Config()), GatherAll()]


def rows(rank: int) -> tuple[Piece, ...]:
    a = Piece("a", Box((2 * rank, 0), (2, 3)), LocalView("a", 0, (3, 1)))
    b = Piece("b", Box((3 * rank,), (3 - rank,)), LocalView("b", 0, (1,)))
    return (a, b)


SOURCE = Layout(PARAMS, (rows(0), rows(1)))


class FakeTrainer:
    """One rank's shards, filled with a number that tells the step."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.views = allocate(SOURCE.ranks[rank], dtypes(PARAMS), torch.device("cpu"))
        self.train(0)

    def train(self, step: int) -> None:
        for piece in SOURCE.ranks[self.rank]:
            whole = weights(step)[piece.name]
            local_view(piece, self.views[piece.view.key])[:] = whole[piece.box.slices()]

    def listen_for_replicas(self, transport: Any) -> Any:
        return transport.listen(RankInfo(self.rank, 2))

    def stage_weights(self, transport: Any, plan: Any, version: int, full: bool) -> Any:
        return transport.stage(plan, self.rank, version, self.views, full=full)


class FakeRollout(RolloutEngine):
    """Keeps what it was given."""

    _version = -1

    def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self._version, self.tensors = version, dict(tensors)

    def layout(self, params: Layout) -> Layout:
        return Layout.full(params.params, self.rank.world)

    @property
    def version(self) -> int:
        return self._version

    def abort(self, request_id: str) -> None: ...

    async def generate(self, request: Any) -> Any: ...


def weights(step: int) -> dict[str, torch.Tensor]:
    return {
        "a": torch.arange(12.0).reshape(4, 3) + 100 * step,
        "b": (torch.arange(5.0) + step // 2).bfloat16(),
    }


def pools() -> tuple[list[FakeTrainer], list[FakeRollout]]:
    replicas = []
    for rank in range(2):
        replica = FakeRollout(None, RolloutSpec("", ModelConfig(path="none")))
        replica.rank = RankInfo(rank, 2)
        replicas.append(replica)
    return [FakeTrainer(0), FakeTrainer(1)], replicas


def connect(engine, trainers, replicas, resharder):
    target = replicas[0].layout(SOURCE)
    plan = resharder.plan(*engine.layouts(SOURCE, target))
    engine.prepare(plan, FakeGroup("policy", trainers), FakeGroup("rollout", replicas))


def of(tmp_path: Path, transport: str = "disk", **options: Any) -> TransportCheckpoint:
    config = TransportCheckpoint.Config(transport=transport, directory=str(tmp_path), **options)
    return TransportCheckpoint(config)


@pytest.mark.parametrize("transport", ["disk", "shm"])
@pytest.mark.parametrize("resharder", RESHARDERS)
def test_every_replica_has_the_exact_weights(tmp_path, transport, resharder):
    trainers, replicas = pools()
    engine = of(tmp_path, transport)
    connect(engine, trainers, replicas, resharder)
    for step in (1, 2):
        for trainer in trainers:
            trainer.train(step)
        stats = engine.publish(step)
        assert stats.bytes_moved == 2 * (12 * 4 + 5 * 2)
        for replica in replicas:
            assert replica.version == step
            for name, tensor in weights(step).items():
                assert torch.equal(replica.tensors[name], tensor)
    assert files_in(tmp_path) == []
    engine.close()
    assert list(tmp_path.iterdir()) == []


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("transport", ["disk", "shm"])
@pytest.mark.parametrize("codec", ["full", "delta"])
def test_the_wire_has_the_type_that_the_replica_serves(tmp_path, transport, codec):
    trainers, replicas = pools()
    engine = of(tmp_path, transport, codec=codec)
    target = replicas[0].layout(SOURCE).typed("bfloat16")
    plan = RESHARDERS[0].plan(*engine.layouts(SOURCE, target))
    engine.prepare(plan, FakeGroup("policy", trainers), FakeGroup("rollout", replicas))
    for step in (1, 2):
        for trainer in trainers:
            trainer.train(step)
        stats = engine.publish(step)
        for replica in replicas:
            for name, tensor in weights(step).items():
                assert torch.equal(replica.tensors[name], tensor.bfloat16())
        assert stats.bytes_moved <= 2 * (12 * 2 + 5 * 2)
    engine.close()


STAGES = """
import sys
from pathlib import Path
from tests.unit.plugins.checkpoint.test_transport import RESHARDERS, connect, of, pools

trainers, replicas = pools()
engine = of(Path(sys.argv[1]), sys.argv[2])
connect(engine, trainers, replicas, RESHARDERS[0])
receipt = trainers[0].stage_weights(engine._transport, engine._plan, 1, True)[0]
print(receipt.path, receipt.nbytes, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("transport", ["disk", "shm"])
def test_what_a_killed_process_staged_is_gone(transport, tmp_path):
    """Controller and trainer in one: nobody of the run is left who could remove it."""
    child = subprocess.Popen(
        [sys.executable, "-c", STAGES, str(tmp_path), transport],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    path, size = child.stdout.readline().split()
    assert os.path.getsize(path) == int(size) > 0
    child.kill()
    child.communicate(timeout=60)
    end = time.monotonic() + 60.0
    while any(tmp_path.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []
    assert not os.path.exists(path)


def test_a_trainer_that_outlives_the_controller_leaves_nothing(tmp_path):
    """It cannot make the folder anew; what it wrote while that was removed is removed too."""
    trainers, replicas = pools()
    engine = of(tmp_path)
    connect(engine, trainers, replicas, RESHARDERS[0])
    trainers[0].stage_weights(engine._transport, engine._plan, 1, True)
    assert len(files_in(tmp_path)) == 2
    engine.close()
    with pytest.raises(SyncError, match=r"rank 0 on .* cannot write .*No such file.*directory"):
        trainers[0].stage_weights(engine._transport, engine._plan, 2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_written_to_while_it_is_removed_is_removed_again(tmp_path, monkeypatch):
    folder = tmp_path / "weights"
    folder.mkdir()
    remove = shutil.rmtree
    calls = []

    def late(path, **options):
        calls.append(path)
        if len(calls) == 1:
            (folder / "late").write_bytes(b"x")  # as a trainer does between two of its steps
            return
        remove(path, **options)

    monkeypatch.setattr(reaper.shutil, "rmtree", late)
    reaper.sweep("", folder, os.getpid())
    assert not folder.exists()


def test_folders_that_nobody_has_touched_for_a_day_are_removed_by_the_next_run(tmp_path):
    """As after a power cut. One of an hour ago may be that of a run on another machine."""
    ages = {"rlframe-weights-old": 2 * 86400, "rlframe-weights-new": 3600, "other": 9 * 86400}
    for name, age in ages.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "v1-r0-0.bin").write_bytes(b"x")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    trainers, replicas = pools()
    engine = of(tmp_path)
    connect(engine, trainers, replicas, RESHARDERS[0])
    engine.close()
    assert {path.name for path in tmp_path.iterdir()} == {"rlframe-weights-new", "other"}


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    trainers, replicas = pools()
    with pytest.raises(ConfigError, match=r"checkpoint.directory=.*/file: Not a directory"):
        connect(of(tmp_path / "file"), trainers, replicas, RESHARDERS[0])


def test_memory_is_given_back_when_a_version_is_out(tmp_path):
    before = in_memory()
    trainers, replicas = pools()
    engine = of(tmp_path, "shm", keep_memory=False)
    connect(engine, trainers, replicas, RESHARDERS[0])
    for step in (1, 2, 3):
        engine.publish(step)
        assert sum(in_memory()) == 0, "the files are empty until the next version"
    engine.close()
    assert in_memory() == before


@pytest.mark.parametrize("transport", ["disk", "shm"])
def test_kept_memory_serves_the_versions_in_turn(tmp_path, transport):
    before = in_memory()
    trainers, replicas = pools()
    engine = of(tmp_path, transport)
    connect(engine, trainers, replicas, RESHARDERS[0])
    places, staged = [], []
    for step in range(5):
        for trainer in trainers:
            trainer.train(step)
        served = [
            {n: (t, t.clone()) for n, t in r._served.tensors.items()} for r in replicas if step
        ]
        engine.publish(step)
        staged.append(in_memory())
        for tensors in served:
            assert all(torch.equal(now, then) for now, then in tensors.values())
        for replica in replicas:
            assert all(torch.equal(replica.tensors[n], w) for n, w in weights(step).items())
        places.append([replica.tensors["a"].data_ptr() for replica in replicas])
    assert places[2:] == places[:-2]
    assert all(one != two for one, two in zip(places[0], places[1], strict=True))
    assert staged[1:] == staged[:1] * 4, "the trainers' memory does not grow"
    engine.close()
    assert in_memory() == before


def test_a_replica_that_lost_its_version_gets_new_storage(tmp_path):
    """What a restarted engine serves is unknown to the transport: nothing of before is written."""
    trainers, replicas = pools()
    engine = of(tmp_path, "shm")
    connect(engine, trainers, replicas, RESHARDERS[0])
    kept = []
    for step in range(3):
        for trainer in trainers:
            trainer.train(step)
        engine.publish(step)
        kept.append(replicas[0].tensors)
        replicas[0]._served = None
    for step, tensors in enumerate(kept):
        assert all(torch.equal(tensors[name], w) for name, w in weights(step).items())


def in_memory() -> list[int]:
    """Sizes of the files in memory that this process has open."""
    opened = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [
        os.stat(path).st_size
        for path in opened
        if os.path.lexists(path) and "memfd:rlframe" in os.readlink(path)
    ]


def test_a_damaged_bucket_is_refused_and_the_old_version_serves(tmp_path):
    trainers, replicas = pools()
    engine = of(tmp_path)
    connect(engine, trainers, replicas, RESHARDERS[0])
    engine.publish(1)
    stage = trainers[1].stage_weights

    def damaged(transport, plan, version, full):
        receipts = stage(transport, plan, version, full)
        path = Path(receipts[0].path)
        data = bytearray(path.read_bytes())
        data[3] ^= 1
        path.write_bytes(data)
        return receipts

    trainers[1].stage_weights = damaged
    for trainer in trainers:
        trainer.train(2)
    with pytest.raises(SyncError, match="version 2: the part of rank 1 is damaged"):
        engine.publish(2)
    for replica in replicas:
        assert replica.version == 1
        assert torch.equal(replica.tensors["a"], weights(0)["a"])
    assert files_in(tmp_path) == []
    trainers[1].stage_weights = stage
    engine.publish(3)
    assert [r.version for r in replicas] == [3, 3]


def test_a_replica_that_fails_lets_none_flip(tmp_path):
    trainers, replicas = pools()
    engine = of(tmp_path)
    connect(engine, trainers, replicas, RESHARDERS[0])
    engine.publish(1)

    def broken(*args):
        raise SyncError("no room")

    replicas[1].fetch_weights = broken
    with pytest.raises(SyncError, match="no room"):
        engine.publish(2)
    assert [r.version for r in replicas] == [1, 1]


def test_a_missing_part_is_named(tmp_path):
    trainers, replicas = pools()
    engine = of(tmp_path)
    connect(engine, trainers, replicas, RESHARDERS[0])
    trainers[1].stage_weights = lambda *args: []
    with pytest.raises(SyncError, match="version 1 lacks 2 parts"):
        engine.publish(1)


def test_flipping_needs_the_staged_version():
    with pytest.raises(SyncError, match="version 4 is not staged"):
        pools()[1][0].flip_weights(4)


def test_disk_needs_a_directory():
    trainers, replicas = pools()
    engine = TransportCheckpoint(TransportCheckpoint.Config(transport="disk"))
    with pytest.raises(ConfigError, match="checkpoint.directory"):
        connect(engine, trainers, replicas, RESHARDERS[0])


def test_hybrid_refuses_pools_of_unequal_size():
    engine = HybridCheckpoint(HybridCheckpoint.Config())
    trainers, replicas = pools()
    with pytest.raises(ConfigError, match="checkpoint=transport"):
        connect(engine, trainers, replicas[:1], _Beside())


class _Beside(GatherAll):
    def plan(self, source, target):
        return super().plan(source.beside(after=1), target)


def test_a_delta_needs_the_version_before(tmp_path):
    trainers, replicas = pools()
    engine = of(tmp_path, codec="delta", retries=0)
    connect(engine, trainers, replicas, RESHARDERS[0])
    first = engine.publish(1)
    trainers[0].views["a"][0, 0] = 7.0
    second = engine.publish(2)
    assert second.bytes_moved < first.bytes_moved
    expected = weights(0)
    expected["a"][0, 0] = 7.0
    for replica in replicas:
        assert all(torch.equal(replica.tensors[n], expected[n]) for n in expected)
    replicas[1]._served = None  # as after a restart
    with pytest.raises(SyncError, match="builds on version 2, this replica has nothing"):
        engine.publish(3)
    assert [r.version for r in replicas] == [2, 2]
    whole = engine.publish(4)
    assert whole.bytes_moved == first.bytes_moved
    assert [r.version for r in replicas] == [4, 4]


def test_a_delta_on_other_weights_is_refused(tmp_path):
    trainers, replicas = pools()
    engine = of(tmp_path, codec="delta", retries=0)
    connect(engine, trainers, replicas, RESHARDERS[0])
    engine.publish(1)
    replicas[0].tensors["a"][3, 2] += 1
    trainers[1].views["a"][0, 0] = 7.0
    with pytest.raises(SyncError, match="does not give the trainer's weights"):
        engine.publish(2)


def exchange(rank: RankInfo, address: Any, steps: int) -> Any:
    """Ranks 0 and 1 train, 2 and 3 serve; all meet in collectives."""
    import time

    engine = of(Path(), "collective", timeout_s=30.0)
    target = Layout.full(PARAMS, 2)
    plan = RESHARDERS[0].plan(*engine.layouts(SOURCE, target))
    transport = CollectiveTransport(engine.config)
    transport.key = "test"
    if rank.rank == 0:
        host, port = transport.listen(RankInfo(0, 2, host="localhost"))
        address.write_text(f"{host} {port}")
    while not address.exists() or not address.read_text():
        time.sleep(0.01)
    host, port = address.read_text().split()
    transport.connect((host, int(port)))
    seen = []
    for step in range(steps):
        if rank.rank < 2:
            trainer = FakeTrainer(rank.rank)
            trainer.train(step)
            trainer.stage_weights(transport, plan, step, True)
            continue
        fetched = transport.fetch(plan, rank.rank, step, [], None)
        for name, tensor in weights(step).items():
            assert torch.equal(fetched.tensors[name], tensor)
        seen.append(fetched)
    assert len({id(one.tensors["a"]) for one in seen}) == len(seen)
    _leave(address, rank.rank, 4)
    return [one.nbytes for one in seen]


def _leave(address: Path, rank: int, world: int) -> None:
    """Rank 0 serves the store: it leaves after all others (the harness bounds the wait)."""
    import time

    address.with_name(f"left-{rank}").touch()
    while rank == 0 and any(not address.with_name(f"left-{r}").exists() for r in range(world)):
        time.sleep(0.01)


@pytest.mark.dist
def test_collectives_give_both_replicas_the_exact_weights(tmp_path):
    sizes = run_ranks(exchange, 4, tmp_path / "address", 2)
    assert sizes[2] == sizes[3] == [12 * 4 + 5 * 2] * 2


class Reversed(Codec):
    """A codec that needs no earlier version: the bytes of a bucket, last one first."""

    def encode(self, elements, base):
        assert base is None or len(base) == len(elements)
        return elements.tobytes()[::-1]

    def decode(self, data, base):
        return np.frombuffer(data.tobytes()[::-1], base.dtype).copy()


class Shuffled(Reversed):
    """Gives every element, in other places."""

    def decode(self, data, base):
        return super().decode(data, base)[::-1].copy()


@pytest.mark.parametrize("transport", ["disk", "shm"])
def test_a_codec_without_a_base_is_asked_for_every_bucket(tmp_path, transport):
    trainers, replicas = pools()
    engine = of(tmp_path, transport, codec=f"{__name__}:Reversed")
    connect(engine, trainers, replicas, RESHARDERS[0])
    receipts = trainers[0].stage_weights(engine._transport, engine._plan, 1, True)
    assert all(receipt.encoded and receipt.base is None for receipt in receipts)
    for step in (1, 2):
        for trainer in trainers:
            trainer.train(step)
        engine.publish(step)
        for replica in replicas:
            for name, tensor in weights(step).items():
                assert torch.equal(replica.tensors[name], tensor), name
    engine.close()


def test_elements_in_other_places_are_refused(tmp_path):
    trainers, replicas = pools()
    engine = of(tmp_path, codec=f"{__name__}:Shuffled", retries=0)
    connect(engine, trainers, replicas, RESHARDERS[0])
    with pytest.raises(SyncError, match="does not give the trainer's weights"):
        engine.publish(1)
    engine.close()


def test_collectives_refuse_a_codec_that_they_would_not_ask(tmp_path):
    trainers, replicas = pools()
    engine = of(tmp_path, "collective", codec="delta")
    with pytest.raises(ConfigError, match="checkpoint.codec=full"):
        connect(engine, trainers, replicas, RESHARDERS[0])
