"""The HybridEngine on eight workers: training 1-4-2 (p-t-d), generation 1-2-2-2, and back."""

from __future__ import annotations

import os
import signal

import pytest

import rlframe
from rlframe.errors import WorkerError
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from rlframe_strategies.fsdp import FSDPStrategy
from tests.e2e.hybrid_run import check_learns
from tests.e2e.small import make_model, make_questions, options

pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600), pytest.mark.usefixtures("one_ray")]


def test_training_1_4_2_with_generation_1_2_2_2_learns(tmp_path):
    """A version at each step by one exchange in each micro-DP group."""
    check_learns(tmp_path, {"name": "fsdp", "tp": 4}, 8)


HERE = "tests.e2e.test_ray_hybrid"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DiesInReshard(FSDPStrategy):
    """Rank 1 dies when the second version is about to be exchanged."""

    given = 0

    def views(self):
        self.given += 1
        if self.rank.rank == 1 and self.given > 2:
            die()
        return super().views()


class DiesInStep(TorchRollout):
    """The follower dies when it is told to decode with weights of version 1."""

    def load(self, version, tensors):
        super().load(version, tensors)
        if version == 1 and self._follower is not None:
            self._follower._decoder.decode = lambda *args: die()


class DiesInFetch(TorchRollout):
    """A replica dies with a version half fetched."""

    def fetch_weights(self, *args):
        if self.version == 0 and self.rank.rank == 1:
            die()
        return super().fetch_weights(*args)


POOL = {"pools": {"train": {"devices": 2}}}
APART = {"pools": {"train": {"devices": 1}, "samples": {"devices": 2}}}
DEATHS = {
    "reshard": ({**POOL, "strategy": f"{HERE}:DiesInReshard"}, {"tensor_parallel": 2}, "policy"),
    "step": (POOL, {"name": f"{HERE}:DiesInStep", "tensor_parallel": 2}, "rollout"),
    "sync": (APART, {"name": f"{HERE}:DiesInFetch", "pool": "samples"}, "rollout"),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("where", DEATHS)
def test_a_rank_killed_in_the_middle_is_named(where, tmp_path):
    """In a reshard, in a step of a replica, in a sync: who, not just whose connection closed."""
    placed, rollout, role = DEATHS[where]
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    given = options(tmp_path, model, questions, steps=4, strategy="fsdp")
    given |= {"cluster": {"name": "ray"}, **placed}
    given["rollout"] |= rollout
    given["checkpoint"] = "transport" if where == "sync" else "hybrid"
    message = rf"'{role}', rank 1 on .*the worker \(process \d+\) died"
    with pytest.raises(WorkerError, match=message):
        rlframe.fit(**given)
