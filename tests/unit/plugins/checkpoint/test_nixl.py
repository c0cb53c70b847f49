"""Weights read by NIXL out of another process; where the package is there."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from rlframe.errors import SyncError
from rlframe.weights.layout import Layout
from tests.unit.plugins.checkpoint.test_transport import (
    PARAMS,
    RESHARDERS,
    SOURCE,
    FakeTrainer,
    connect,
    of,
    pools,
    weights,
)

pytest.importorskip("nixl._api", reason="needs the package nixl: pip install 'rlframe[nixl]'")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(180)]


@pytest.mark.parametrize("codec", ["full", "delta"])
def test_every_replica_has_the_exact_weights(codec, tmp_path):
    trainers, replicas = pools()
    engine = of(tmp_path, "nixl", codec=codec)
    connect(engine, trainers, replicas, RESHARDERS[0])
    for step in (1, 2, 3):
        for trainer in trainers:
            trainer.train(step)
        engine.publish(step)
        for replica in replicas:
            assert replica.version == step
            for name, tensor in weights(step).items():
                assert torch.equal(replica.tensors[name], tensor)
    engine.close()


def _train(pipe, folder: Path) -> None:
    """A trainer in a process of its own: stages rank 0 and rank 1, spoils or ends on demand."""
    engine = of(folder, "nixl")
    plan = RESHARDERS[0].plan(*engine.layouts(SOURCE, Layout.full(PARAMS, 2)))
    transport = pipe.recv()
    trainers = [FakeTrainer(0), FakeTrainer(1)]
    while True:
        step = pipe.recv()
        if step is None:
            return
        for trainer in trainers:
            trainer.train(abs(step))
        receipts = [t.stage_weights(transport, plan, abs(step), True) for t in trainers]
        if step < 0:
            from rlframe_plugins.transports import nixl

            for held in nixl._held.values():
                next(iter(held.buffers.values()))[0][3] ^= 1
        pipe.send(receipts)


def test_a_replica_reads_from_another_process_and_refuses_damage_and_death(tmp_path):
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_train, args=(theirs, tmp_path))
    process.start()
    engine = of(tmp_path, "nixl", timeout_s=20.0)
    plan = RESHARDERS[0].plan(*engine.layouts(SOURCE, Layout.full(PARAMS, 2)))
    from rlframe_plugins.codecs.full import FullCodec
    from rlframe_plugins.transports.nixl import NixlTransport

    transport = NixlTransport(engine.config, FullCodec())
    ours.send(transport)
    for step in (1, 2):
        ours.send(step)
        found = transport.fetch(plan, 2, step, ours.recv(), None)
        for name, tensor in weights(step).items():
            assert torch.equal(found.tensors[name], tensor)
        assert found.nbytes == 12 * 4 + 5 * 2
    ours.send(-3)
    with pytest.raises(SyncError, match="version 3: the part of rank . is damaged"):
        transport.fetch(plan, 2, 3, ours.recv(), None)
    ours.send(4)
    receipts = ours.recv()
    process.kill()
    process.join()
    with pytest.raises(SyncError, match="version 4: the part of rank . is gone: "):
        transport.fetch(plan, 2, 4, receipts, None)
    assert np.isfinite(found.tensors["a"].numpy()).all()
