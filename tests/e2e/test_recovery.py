"""What breaks in a run is restarted in the same driver, and the run ends as an unbroken one."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from rlframe.errors import MethodFault, StuckError, WorkerError
from rlframe.orchestrator import Orchestrator
from rlframe.snapshots.snapshot import SnapshotStore
from rlframe_algorithms.grpo import GRPO
from rlframe_plugins.envs.single_turn import SingleTurn
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from rlframe_strategies.engine import CausalLMEngine
from tests.e2e.test_schedulers_run import learned, run

HERE = "tests.e2e.test_recovery"
BREAKS: dict[str, int] = {}
"""How often what still breaks, by its name."""


def breaks(what: str) -> bool:
    BREAKS[what] = BREAKS.get(what, 0) - 1
    return BREAKS[what] >= 0


class Fragile(CausalLMEngine):
    def update(self, batch, plan):
        if breaks(f"update {int(batch['policy_version'].max())}"):
            raise MemoryError("no room")
        return super().update(batch, plan)

    def load(self, directory):
        if breaks("load"):
            raise OSError("no such device")
        super().load(directory)


class FragileRollout(TorchRollout):
    async def generate(self, request):
        if breaks(f"generate {self.version}"):
            raise MemoryError("no room for its cache")
        return await super().generate(request)


class BadMethod(GRPO):
    def loss(self, role, out, batch):
        raise LookupError("no loss")


class Slow(SingleTurn):
    """One group never ends, as long as it is told so."""

    async def run(self, row, request, generate):
        if row.group_id == 9 and breaks("environment"):
            await asyncio.sleep(3600)
        return await super().run(row, request, generate)


@pytest.fixture(autouse=True)
def _whole():
    BREAKS.clear()


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    newest = SnapshotStore(run_dir).latest()
    assert newest is not None
    found = sorted((newest.path / "policy").glob("*.safetensors"))
    return {f"{file.name}/{n}": t for file in found for n, t in load_file(file).items()}


def same_weights(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


def fragile(folder: Path, name: str, scheduler: str = "sync", **more) -> Path:
    options = {"model": {"engine": f"{HERE}:Fragile"}, "run.restart_wait_s": 0.0, **more}
    return run(folder, name, {"name": scheduler}, **options)


def test_a_run_that_breaks_three_times_equals_the_unbroken_one(tmp_path):
    """In an update, while its snapshot is loaded, in a rollout; nothing of a life is left.

    What the rollout engine raises is no fault of the environment, and no response is left out.
    """
    whole = fragile(tmp_path, "whole")
    threads = threading.active_count()
    BREAKS.update({"update 2": 1, "load": 1, "generate 3": 1})
    rollout = {"name": f"{HERE}:FragileRollout", "batch_invariant": True, "max_new_tokens": 6}
    options = {"run.max_restarts": 3, "reward": {"name": "exact", "on_error": "skip"}}
    broken = fragile(tmp_path, "broken", rollout=rollout, **options)
    assert same_weights(whole, broken)
    assert learned(broken) == learned(whole)
    summary = json.loads((broken / "summary.json").read_text())
    assert summary["status"] == "finished"
    taken = [one["snapshot"] for one in summary["restarts"]]
    assert taken == ["step-000002", "step-000002", "step-000003"]
    reasons = [one["reason"] for one in summary["restarts"]]
    words = ("MemoryError: no room", "no such device", "FragileRollout: MemoryError: no room for")
    assert all(word in reason for word, reason in zip(words, reasons, strict=True)), reasons
    gc.collect()
    left = [one for one in gc.get_objects() if type(one) is Orchestrator]
    assert not left
    assert threading.active_count() <= threads


def test_before_the_first_snapshot_it_begins_anew(tmp_path):
    whole = fragile(tmp_path, "whole")
    BREAKS["update 1"] = 1
    broken = fragile(tmp_path, "broken", **{"run.max_restarts": 1, "run.save_every": 0})
    assert same_weights(whole, broken)
    assert learned(broken) == learned(whole)


def test_what_stays_broken_ends_the_run(tmp_path):
    BREAKS["update 1"] = 99
    with pytest.raises(WorkerError, match="no room") as caught:
        fragile(tmp_path, "broken", **{"run.max_restarts": 9})
    assert any("the same came again" in note for note in caught.value.__notes__)
    summary = json.loads((tmp_path / "broken" / "summary.json").read_text())
    assert summary["status"].startswith("failed: WorkerError")
    assert len(summary["restarts"]) == 1


def test_a_methods_own_exception_is_not_tried_again(tmp_path):
    algo = {"name": f"{HERE}:BadMethod", "samples_per_prompt": 2}
    with pytest.raises(MethodFault, match="no loss"):
        fragile(tmp_path, "broken", algo=algo, **{"run.max_restarts": 9})
    summary = json.loads((tmp_path / "broken" / "summary.json").read_text())
    assert summary["restarts"] == []


@pytest.mark.parametrize("scheduler", ["one-step-off", "async"])
def test_a_step_that_was_learned_is_kept_where_the_rollout_beside_it_hangs(
    scheduler, tmp_path, capfd
):
    """Group 9 is played beside the second update: that step is saved, and learned from once."""
    options = {"name": scheduler, "wait_s": 1.0}
    if scheduler == "async":
        options |= {"on_update": "drain"}
    BREAKS["environment"] = 2
    with pytest.raises(StuckError, match="wait_s"):
        run(tmp_path, "hung", options, env=f"{HERE}:Slow", **{"run.save_every": 0})
    assert "stacks of all workers" in capfd.readouterr().err
    newest = SnapshotStore(tmp_path / "hung").latest()
    assert newest is not None
    assert newest.step == 2
    BREAKS.clear()
    done = rlframe.fit(resume=tmp_path / "hung")
    counts = Counter(group for groups in learned(done.run_dir) for group in groups)
    assert counts == Counter(range(16))
    assert done.summary["steps"] == 4


def test_a_hang_is_mended_in_the_same_driver(tmp_path):
    BREAKS["environment"] = 2
    options = {"name": "one-step-off", "wait_s": 1.0}
    done = run(tmp_path, "hung", options, env=f"{HERE}:Slow", **{"run.max_restarts": 1})
    counts = Counter(group for groups in learned(done) for group in groups)
    assert counts == Counter(range(16))
    (restart,) = json.loads((done / "summary.json").read_text())["restarts"]
    assert restart["snapshot"] == "step-000002"
