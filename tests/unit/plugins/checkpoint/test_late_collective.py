"""Collectives meet anew under another key: after a failure, and for a replica that started late."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest
import torch

from rlframe.errors import SyncError
from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.dist import run_ranks
from rlframe.weights.layout import Layout
from rlframe_plugins.resharders.planner import present
from rlframe_plugins.transports import collective
from rlframe_plugins.transports.collective import CollectiveTransport
from tests.unit.plugins.checkpoint.test_transport import (
    PARAMS,
    RESHARDERS,
    SOURCE,
    FakeTrainer,
    of,
    weights,
)


def meeting(rank: int, folder: Path, key: str, timeout_s: float) -> CollectiveTransport:
    """Where rank 0 listens for this key."""
    transport = CollectiveTransport(of(folder, "collective", timeout_s=timeout_s).config)
    transport.key = key
    address = folder / key
    if rank == 0:
        host, port = transport.listen(RankInfo(0, 2, host="localhost"))
        address.with_suffix(".new").write_text(f"{host} {port}")
        address.with_suffix(".new").rename(address)
    while not address.exists():
        time.sleep(0.01)
    host, port = address.read_text().split()
    transport.connect((host, int(port)))
    return transport


def rounds(rank: RankInfo, folder: Path) -> list[str]:
    """Ranks 0 and 1 train, 2 and 3 serve; rank 3 is missed in a round, then left out, then back."""
    engine = of(folder, "collective")
    whole = RESHARDERS[0].plan(*engine.layouts(SOURCE, Layout.full(PARAMS, 2)))
    seen = []
    for number, key in enumerate(("first", "broken", "without", "renewed")):
        plan = present(whole, {3}) if key == "without" else whole
        transport = meeting(rank.rank, folder, key, timeout_s=1.0 if key == "broken" else 60.0)
        if key in ("broken", "without") and rank.rank == 3:
            collective._movers.clear()  # as a process that has just started
            continue
        try:
            if rank.rank < 2:
                trainer = FakeTrainer(rank.rank)
                trainer.train(number)
                transport.stage(plan, rank.rank, number, trainer.views, full=True)
            else:
                found = transport.fetch(plan, rank.rank, number, [], None)
                for name, tensor in weights(number).items():
                    assert torch.equal(found.tensors[name], tensor)
            seen.append(key)
        except SyncError as error:
            seen.append(str(error).partition(" gone")[0] + " gone")
    (folder / f"left-{rank.rank}").touch()
    while rank.rank == 0 and len(list(folder.glob("left-*"))) < 4:
        time.sleep(0.01)
    return seen


@pytest.mark.dist
@pytest.mark.timeout(150)
def test_after_a_failure_all_meet_again(tmp_path):
    *others, late = run_ranks(rounds, 4, tmp_path)
    gone = "version 1: a rank of the exchange is gone"
    assert others == [["first", gone, "without", "renewed"]] * 3
    assert late == ["first", "renewed"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere loopback is one address")
def test_the_store_listens_on_one_address(tmp_path):
    """It knows no token, so that it must not be reached by another way than the ranks take."""
    transport = CollectiveTransport(of(tmp_path, "collective").config)
    transport.key = "one-address"
    host, port = transport.listen(RankInfo(0, 2, host="localhost"))
    assert host == "127.0.0.1"
    socket.create_connection((host, port), timeout=20).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=20)
    collective._stores.pop("one-address")
