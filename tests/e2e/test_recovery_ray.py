"""A rank that is killed on Ray: its group restarts from the newest snapshot, in the same driver."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

import rlframe
from rlframe.timeline import read_timeline
from rlframe_strategies.engine import CausalLMEngine
from tests.e2e.small import letters, make_model, make_questions, options
from tests.e2e.test_ray_faults import assert_nobody_left, shared_memory
from tests.e2e.test_schedulers_run import learned

pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600), pytest.mark.usefixtures("one_ray")]

HERE = "tests.e2e.test_recovery_ray"


class Killed(CausalLMEngine):
    """Rank 1 is killed in the second update that it is asked for, once a folder."""

    updates = 0

    def update(self, batch, plan):
        self.updates += 1
        mark = Path(self._spec.model.path) / "killed"
        if self.rank.rank == 1 and self.updates == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().update(batch, plan)


def test_a_training_rank_that_is_killed_restarts_its_group(tmp_path):
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl", rows=40)
    given = options(tmp_path, model, questions, steps=3, strategy="fsdp", cluster={"name": "ray"})
    given["model"] = {"path": str(model), "engine": f"{HERE}:Killed"}
    given |= {"pools": {"train": {"devices": 2}}, "reward": letters}
    given["run"] |= {"save_every": 1, "max_restarts": 1, "dump_rollouts": True}
    before = shared_memory()
    done = rlframe.fit(**given)
    assert (done.summary["status"], done.summary["steps"]) == ("finished", 3)
    (restart,) = done.summary["restarts"]
    assert (restart["step"], restart["snapshot"]) == (1, "step-000001")
    assert "rank 1" in restart["reason"]
    assert "died" in restart["reason"]
    steps = learned(done.run_dir)
    assert [len(groups) for groups in steps] == [4] * 3
    assert Counter(g for groups in steps for g in groups) == Counter(range(12))
    lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    spans = read_timeline(done.run_dir)
    assert {"train:0", "train:1", "collector", "controller"} >= {span.lane for span in spans}
    ranks = {(span.life, span.lane) for span in spans if span.stage == "update"}
    assert ranks == {(life, f"train:{rank}") for life in (0, 1) for rank in (0, 1)}
    assert_nobody_left(before)
