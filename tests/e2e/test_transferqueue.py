"""Runs whose columns lie in TransferQueue, with the real package on a real Ray."""

from __future__ import annotations

import json
import os
import signal
import time

import numpy as np
import pytest

import rlframe
from rlframe.batching.packed import Packed
from rlframe.errors import BatchError, ConfigError
from rlframe.testing.cluster_kit import wait_until_gone
from rlframe_plugins.clusters.ray.session import Session
from rlframe_plugins.transfer.transferqueue import TransferQueueTransfer
from tests.e2e.small import make_model, make_questions, options

ray = pytest.importorskip("ray")
pytest.importorskip(
    "transfer_queue",
    reason="transfer 'transferqueue' needs transfer_queue: make test-transferqueue",
)
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
UNIT = "TransferQueueStorageUnit#0"
PPO = {"name": "ppo", "samples_per_prompt": 2}
REWARD = {"name": "regex", "pattern": "[a-g]"}


@pytest.fixture(scope="module")
def one_ray():
    """Room for two ranks, a controller and a storage unit."""
    session = Session(logical_cpus=3)
    yield
    session.close()


def actors():
    """Names of the actors of TransferQueue that live."""
    return {one["name"] for one in ray.util.list_named_actors(all_namespaces=True)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run in this process whose rollouts others replay."""
    folder = tmp_path_factory.mktemp("recorded")
    model, questions = make_model(folder / "m"), make_questions(folder / "q.jsonl")
    given = options(folder, model, questions, algo=PPO, reward=REWARD)
    given["run"] = {"dir": str(folder), "name": "inline", "dump_rollouts": True}
    return folder, rlframe.fit(**given).run_dir


def replayed(recorded, folder, transfer):
    source, run = recorded
    given = options(
        folder,
        source / "m",
        source / "q.jsonl",
        algo=PPO,
        reward=REWARD,
        strategy="fsdp",
        pools={"train": {"devices": 2}},
        rollout={"name": "replay", "run": str(run), "max_new_tokens": 4},
        cluster={"name": "ray"},
        transfer=transfer,
    )
    given["run"] = {"dir": str(folder), "name": transfer}
    done = rlframe.fit(**given)
    lines = [json.loads(line) for line in (done.run_dir / "metrics.jsonl").read_text().splitlines()]
    samples = (done.run_dir / "samples.jsonl").read_text()
    dropped = ("timing_s/", "perf/")
    return [{k: v for k, v in x.items() if not k.startswith(dropped)} for x in lines], samples


@pytest.mark.usefixtures("one_ray")
def test_a_run_learns_as_over_the_object_store_and_leaves_no_actor(recorded, tmp_path):
    """GAE on the ranks, a critic, two steps of replayed rollouts; the same figures and texts."""
    found, texts = replayed(recorded, tmp_path, "transferqueue")
    expected, same_texts = replayed(recorded, tmp_path, "ray")
    assert len(found) >= 2
    assert [set(line) for line in found] == [set(line) for line in expected]
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            assert one[name] == pytest.approx(value, rel=1e-4, abs=1e-5, nan_ok=True), name
    assert texts == same_texts
    assert UNIT not in actors()
    assert "TransferQueueController" not in actors()


def test_too_few_cpus_are_an_error_in_seconds(tmp_path):
    """Nothing of TransferQueue is started; the pools took what it needs."""
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    given = options(tmp_path, model, questions, pools={"train": {"devices": 1}}, reward=REWARD)
    given["transfer"] = {"name": "transferqueue", "units": 2}
    given["cluster"] = {"name": "ray", "cpus": 0.5}
    session = Session(logical_cpus=3)
    try:
        started = time.monotonic()
        with pytest.raises(
            ConfigError, match=r"needs 3 whole CPUs.*transfer.units=2.* 2 of 3.*logical_cpus"
        ):
            rlframe.fit(**given)
        assert time.monotonic() - started < 60.0
        assert not {name for name in actors() if name.startswith("TransferQueue")}
    finally:
        session.close()


@pytest.mark.usefixtures("one_ray")
def test_a_lost_block_names_its_column_and_who_made_it():
    """Its storage unit was killed; a second queue beside this one is refused meanwhile."""
    engine = TransferQueueTransfer()
    engine.start()
    try:
        tokens = Packed(np.arange(6), np.array([1, 2, 3]))
        handle = engine.put({"response_ids": tokens})["response_ids"]
        pid = ray.get(ray.get_actor(UNIT).__ray_call__.remote(lambda unit: os.getpid()))
        os.kill(pid, signal.SIGKILL)
        wait_until_gone([pid])
        end = time.monotonic() + 60.0
        while UNIT in actors() and time.monotonic() < end:
            time.sleep(0.05)
        with pytest.raises(
            BatchError, match=rf"'response_ids' made by {handle.owner} is lost .3 r"
        ):
            engine.get([(handle, np.arange(3))])
        with pytest.raises(BatchError, match=r"columns values cannot be stored by"):
            engine.put({"values": Packed(np.zeros(6, np.float32), np.array([1, 2, 3]))})
    finally:
        engine.close()


@pytest.mark.usefixtures("one_ray")
def test_rows_that_are_freed_leave_the_queue():
    import transfer_queue

    engine = TransferQueueTransfer()
    engine.start()
    try:
        tokens = Packed(np.arange(6), np.array([1, 2, 3]))
        handles = engine.put({"response_ids": tokens, "prompt_ids": tokens})
        assert len(transfer_queue.kv_list("rlframe")["rlframe"]) == 3
        engine.free([handles["response_ids"]])
        (found,) = engine.get([(handles["prompt_ids"].view(np.array([2, 0])), np.array([1, 0]))])
        assert found.values.tolist() == [0, 3, 4, 5]
        engine.free([handles["prompt_ids"]])
        assert not transfer_queue.kv_list("rlframe").get("rlframe")
        with pytest.raises(BatchError, match="'prompt_ids' made by .* was freed"):
            engine.get([(handles["prompt_ids"], np.arange(3))])
    finally:
        engine.close()


@pytest.mark.usefixtures("one_ray")
def test_a_queue_of_another_run_is_not_taken_for_our_own():
    other = ray.remote(num_cpus=0)(dict)
    kept = other.options(name="TransferQueueController", namespace="transfer_queue").remote()
    try:
        with pytest.raises(ConfigError, match="of another run, and can have one only"):
            TransferQueueTransfer().start()
    finally:
        ray.kill(kept)
