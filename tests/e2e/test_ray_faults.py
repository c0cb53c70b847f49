"""A fault in each stage of a run on Ray: who, where and why in the error, and nobody left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import rlframe
from rlframe.errors import RlframeError, RolloutError, WorkerError
from rlframe_algorithms.ppo import PPO
from rlframe_plugins.envs.single_turn import SingleTurn
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from tests.e2e.small import make_model, make_questions, options

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(300), pytest.mark.usefixtures("one_ray")]

HERE = "tests.e2e.test_ray_faults"
WAIT_S = 60.0


def on_rank_1(what: str) -> None:
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_rank() == 1:
        raise LookupError(what)


class BadAdvantages(PPO):
    def advantages(self, batch):
        on_rank_1("no advantage")
        return super().advantages(batch)


class BadLoss(PPO):
    def loss(self, role, out, batch):
        on_rank_1("no loss")
        return super().loss(role, out, batch)


class BadEnvironment(SingleTurn):
    async def run(self, row, request, generate):
        await generate(request)
        raise LookupError("no episode")


class BadSampling(TorchRollout):
    async def generate(self, request):
        raise LookupError("no completion")


class BadLoad(TorchRollout):
    def load(self, version, tensors):
        if version == 1 and self.rank.rank == 1:
            raise LookupError("no weights")
        super().load(version, tensors)


def sampled(engine: str) -> dict:
    return {"rollout": {"name": f"{HERE}:{engine}", "max_new_tokens": 4}}


def method(name: str) -> dict:
    return {"algo": {"name": f"{HERE}:{name}", "samples_per_prompt": 2}}


ON_RANK_1 = f"rank 1 on {os.uname().nodename}"
FAULTS = {
    "collect, environment": (
        {"env": f"{HERE}:BadEnvironment"},
        (RolloutError, r"environment BadEnvironment.run raised LookupError: no episode \(.*py:\d+"),
    ),
    "collect, engine": (
        sampled("BadSampling"),
        (RolloutError, "BadSampling: LookupError: no completion"),
    ),
    "learn, advantages": (
        method("BadAdvantages"),
        (
            WorkerError,
            rf"{ON_RANK_1}: advantages: BadAdvantages.advantages raised LookupError: no advantage "
            r"\(.*py:\d+\)\n[^$]*test_ray_faults.py.*in advantages",
        ),
    ),
    "learn, loss": (
        method("BadLoss"),
        (
            WorkerError,
            rf"{ON_RANK_1}: update: BadLoss.loss raised LookupError: no loss \(.*py:\d+\)\n"
            r"[^$]*test_ray_faults.py.*in loss",
        ),
    ),
    "publish": (
        sampled("BadLoad"),
        (WorkerError, rf"role '\w+', {ON_RANK_1}: .*LookupError: no weights"),
    ),
}
IN_A_WORKER = ("learn, advantages", "learn, loss", "publish")


@pytest.mark.parametrize("stage", FAULTS)
def test_a_fault_in_a_stage_is_told_and_nobody_is_left(stage, tmp_path):
    more, (kind, message) = FAULTS[stage]
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    given = {"pools": {"train": {"devices": 2}}, "strategy": "fsdp", "cluster": {"name": "ray"}}
    given = options(tmp_path, model, questions, **given, **more)
    before = shared_memory()
    with pytest.raises(RlframeError, match=message) as caught:
        rlframe.fit(**given)
    assert isinstance(caught.value, kind)
    if stage in IN_A_WORKER:
        told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert f"role 'policy', {ON_RANK_1}" in told
    assert_nobody_left(before)


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "rlframe" in name}


def workers() -> list[int]:
    """Processes of actors; those that wait for one have another title."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if b"ray::WorkerProcess" in (entry / "cmdline").read_bytes() and ours(entry):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def ours(entry: Path) -> bool:
    """Whether a process uses the Ray of this test: its folder stands in what is open."""
    folder = ray._private.worker._global_node.get_session_dir_path()
    return any(
        os.readlink(entry / "fd" / name).startswith(folder) for name in os.listdir(entry / "fd")
    )


def assert_nobody_left(before: set[str]) -> None:
    end = time.monotonic() + WAIT_S
    while workers() and time.monotonic() < end:
        time.sleep(0.1)
    assert workers() == []
    assert shared_memory() <= before
    groups = ray.util.placement_group_table().values()
    assert {group["state"] for group in groups} <= {"REMOVED"}
