"""Runs on Ray: placements by config alone equal one process; a worker killed in each stage."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from rlframe.errors import WorkerError
from rlframe.interfaces.loop import Callback
from tests.e2e.replays import check_figures, check_weights, record, replay
from tests.e2e.small import make_model, make_questions, options

pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600), pytest.mark.usefixtures("one_ray")]


@pytest.fixture
def arguments(tmp_path):
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")

    def make(**more):
        return options(tmp_path, model, questions, **more)

    return make


PLACEMENTS = {
    "colocated": {"pools": {"train": {"devices": 2}}},
    "critic apart": {
        "pools": {"train": {"devices": 1}, "second": {"devices": 1}},
        "roles": {"critic": {"pool": "second"}},
    },
}


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inline")
    model, questions = make_model(folder / "m"), make_questions(folder / "q.jsonl")
    return record(folder, model, questions), model, questions


@pytest.mark.parametrize("name", PLACEMENTS)
def test_an_update_equals_that_of_one_process(name, inline, tmp_path):
    """On replayed rollouts, from equal weights: every metric, every weight of the policy."""
    run, model, _ = inline
    spread = replay(tmp_path, *inline, strategy="fsdp", **PLACEMENTS[name])
    check_figures(run, spread)
    weights = check_weights(run, spread, tmp_path)
    before = load_file(model / "model.safetensors")
    assert any(not torch.equal(w, before[k].to(w.dtype)) for k, w in weights.items() if k in before)


class KillBefore(Callback):
    """Kills rank 1 of the policy right before a stage of the first step."""

    stage = "collect"

    def on_step_start(self, orchestrator):
        original = getattr(orchestrator, self.stage)

        def stage(*args, **kwargs):
            member = orchestrator.roles["policy"].crew.members[1]
            os.kill(member.where.pid, signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(orchestrator, self.stage, stage)


class KillBeforeLearn(KillBefore):
    stage = "learn"


class KillBeforePublish(KillBefore):
    stage = "publish"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("killer", [KillBefore, KillBeforeLearn, KillBeforePublish])
def test_a_worker_killed_in_a_stage_is_named(killer, arguments):
    given = arguments(strategy="fsdp", pools={"train": {"devices": 2}}, callback=[killer])
    given["cluster"] = {"name": "ray"}
    with pytest.raises(WorkerError, match=r"rank 1 on .*the worker \(process \d+\) died"):
        rlframe.fit(**given)


class KillReplica(Callback):
    """Kills the only replica right before weights are published to it."""

    def on_step_start(self, orchestrator):
        original, replicas = orchestrator.publish, orchestrator.parts.checkpoint._targets

        def publish(*running):
            os.kill(replicas.crew.members[0].where.pid, signal.SIGKILL)
            return original(*running)

        orchestrator.publish = publish


@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", ["shm", "collective"])
def test_a_replica_of_another_pool_killed_before_its_weights_come_is_named(transport, arguments):
    """Also where the trainers meet it in an exchange, and see a closed connection first."""
    given = arguments(pools={"train": {"devices": 1}, "samples": {"devices": 1}})
    given |= {"callback": [KillReplica], "cluster": {"name": "ray"}}
    given["rollout"] |= {"pool": "samples"}
    given["checkpoint"] = {"name": "transport", "transport": transport}
    with pytest.raises(
        WorkerError, match=r"'rollout', rank 0 on .*the worker \(process \d+\) died"
    ):
        rlframe.fit(**given)
