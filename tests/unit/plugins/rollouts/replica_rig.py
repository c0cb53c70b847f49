"""A generation replica of several ranks: the leader here, each follower in a forked process."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlframe.interfaces.rollout import RolloutSpec
from rlframe.interfaces.strategy import RankInfo
from rlframe.weights.layout import Layout, ParamInfo
from rlframe_plugins.rollouts.torch.engine import TorchRollout

FORK = multiprocessing.get_context("fork")
ANSWER_S = 60.0


class Followers:
    """Ranks 1 and on of replicas that are made one after the other."""

    def __init__(self, ranks: int) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        self.folder = tempfile.TemporaryDirectory(prefix="rlframe-replica-")
        self.pipes, self.processes = [], []
        for rank in range(1, ranks):
            ours, theirs = FORK.Pipe()
            process = FORK.Process(target=_follow, args=(theirs, rank, ranks), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def send(self, what: str, *args: Any) -> None:
        for pipe in self.pipes:
            pipe.send((what, args))

    def answers(self) -> list[Any]:
        found = []
        for pipe in self.pipes:
            assert pipe.poll(ANSWER_S), "a follower gives no answer"
            found.append(pipe.recv())
        return found

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


def _follow(pipe: Any, rank: int, world: int) -> None:
    torch.set_num_threads(1)
    engine: Any = None
    while True:
        what, args = pipe.recv()
        try:
            if what == "make":
                config, spec, meeting = args
                engine = TorchRollout(config, spec)
                engine.rank = RankInfo(rank=rank, world=world, init_method=meeting)
                pipe.send(None)
            elif what == "load":
                version, parts = args
                engine.load(version, {n: torch.from_numpy(a) for n, a in parts[rank].items()})
                pipe.send(None)
            elif what == "patch":
                args[0](engine)
                pipe.send(None)
            elif what == "ask":
                pipe.send(args[0](engine))
            else:
                engine.close()
                pipe.send(None)
        except Exception as error:  # noqa: BLE001 - shown by the test
            pipe.send(error)


class Replica(TorchRollout):
    """The leader; whoever loads it loads whole tensors, from which each rank gets its own."""

    followers: Followers

    def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        parts = self.parts(tensors)
        self.followers.send("load", version, parts)
        super().load(version, {n: torch.from_numpy(a) for n, a in parts[0].items()})
        assert self.followers.answers() == [None] * len(self.followers.pipes)

    def parts(self, tensors: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
        params = {n: ParamInfo(tuple(t.shape), "float32") for n, t in tensors.items()}
        layout = self.layout(Layout.full(params, self.rank.world))
        return [
            {p.name: tensors[p.name][p.box.slices()].contiguous().numpy() for p in pieces}
            for pieces in layout.ranks
        ]

    def close(self) -> None:
        self.followers.send("close")
        super().close()
        self.followers.answers()


def replica(followers: Followers, config: TorchRollout.Config, spec: RolloutSpec) -> Replica:
    """A leader and its followers, which have no weights yet."""
    number = len(list(Path(followers.folder.name).iterdir()))
    path = Path(followers.folder.name, f"meeting-{number}")
    path.touch()
    engine = Replica(config, spec)
    world = 1 + len(followers.pipes)
    engine.rank = RankInfo(rank=0, world=world, init_method=f"file://{path}")
    engine.followers = followers
    followers.send("make", config, spec, f"file://{path}")
    assert followers.answers() == [None] * len(followers.pipes)
    return engine
