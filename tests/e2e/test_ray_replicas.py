"""Rollout replicas that are killed: the others answer, and the new process joins the same run."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

import rlframe
from rlframe_plugins.rollouts.router import Router
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from tests.e2e.small import make_model, make_questions, options

pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(400), pytest.mark.usefixtures("one_ray")]

HERE = "tests.e2e.test_ray_replicas"
WAIT_S = 200.0


def notes(spec) -> Path:
    """Where the processes of a test leave notes: beside the model."""
    return Path(spec.path).parent / "notes"


class Killed(TorchRollout):
    """Replica 1 is killed -9 with its first requests; what each process does is noted."""

    async def generate(self, request):
        self.die_if(True)
        return await self.served(request)

    def die_if(self, now: bool) -> None:
        killed = notes(self.spec) / "killed"
        if now and self.rank.rank == 1 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    async def served(self, request):
        with (notes(self.spec) / "served").open("a") as file:
            file.write(f"{self.rank.rank} {os.getpid()} {self.version}\n")
        return await super().generate(request)


class KilledFollower(Killed):
    """Rank 1 holds a replica with rank 0, which takes requests; it is killed in one."""

    async def generate(self, request):
        folder = notes(self.spec)
        if self.rank.rank == 0 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(int((folder / "follower").read_text()), signal.SIGKILL)
        return await super().generate(request)

    def load(self, version, tensors):
        folder = notes(self.spec)
        if self.rank.rank == 1 and not (folder / "killed").exists():
            (folder / "follower").write_text(str(os.getpid()))
        super().load(version, tensors)


def returns() -> float:
    """How often the router of this process, which plays the episodes, let a replica in again."""
    routers = [one for one in gc.get_objects() if type(one) is Router]
    return max((one.stats()["returns"] for one in routers), default=0.0)


async def noted(response: str, prompt: str, folder: str) -> float:
    """Notes what is scored; what comes after the death waits until the replica takes requests."""
    place, waited = Path(folder), 0.0
    while (place / "killed").exists() and not (place / "back").exists() and waited < WAIT_S:
        if returns():
            (place / "back").touch()
        await asyncio.sleep(0.05)
        waited += 0.05
    with (place / "scored").open("a") as file:
        file.write(f"{prompt}\n")
    return float(len(set(response)))


def check_figures(run: Path, replicas: int) -> None:
    """Each step says what engines and router did and hold; the death is counted where it was."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    steps = [row for row in rows if "timing_s/step" in row]
    assert len(steps) == 4
    for row in steps:
        assert (
            row["rollout/running"] == row["rollout/waiting"] == row["rollout/kv_used_tokens"] == 0
        )
        assert row["rollout/kv_total_tokens"] > 0
        assert 0 <= row["rollout/prefix_hit_ratio"] < 1
        assert row["rollout/tokens_per_s"] > 0
        assert row["collect/router/waiting"] == 0
        assert sum(name.startswith("collect/router/open/") for name in row) == replicas
    for name in ("retries", "deaths", "returns"):
        assert sum(row[f"collect/router/{name}"] for row in steps) >= 1
    assert steps[-1]["collect/router/replicas_up"] == replicas


FORMS = {
    "alone": ({"devices": 2}, {}, {}, "rollout replica 1 on"),
    "pairs": (
        {"devices": 4},
        {"tensor_parallel": 2, "step_timeout_s": 60},
        {"transport": "collective", "timeout_s": 60},
        "rollout replica 0 (ranks 0, 1) on",
    ),
}
"""Pool, rollout and checkpoint, and how the killed replica is named: rank 1 is one, or follows."""


@pytest.mark.parametrize("form", FORMS)
def test_a_killed_replica_is_replaced_while_the_run_goes_on(form: str, tmp_path: Path) -> None:
    """Whether weights are fetched, or brought by a group in which trainers and replicas meet."""
    pool, rollout, checkpoint, named = FORMS[form]
    model, folder = make_model(tmp_path / "m"), tmp_path / "notes"
    folder.mkdir()
    questions = make_questions(tmp_path / "q.jsonl", rows=16)
    rows = [json.loads(line) | {"folder": str(folder)} for line in questions.open()]
    questions.write_text("\n".join(map(json.dumps, rows)) + "\n")
    given = options(tmp_path, model, questions, steps=4, reward=noted)
    given |= {"pools": {"train": {"devices": 1}, "samples": pool}}
    given |= {"cluster": {"name": "ray"}}
    given["checkpoint"] = {"name": "transport", "verify": 1, **checkpoint}
    target = {"alone": "Killed", "pairs": "KilledFollower"}[form]
    given["rollout"] = {"name": f"{HERE}:{target}", "pool": "samples", "max_new_tokens": 4}
    given["rollout"] |= rollout
    given["run"] |= {"max_restarts": 2, "restart_wait_s": 0.1}
    done = rlframe.fit(**given)
    assert (done.summary["steps"], done.summary["restarts"]) == (4, [])
    assert Counter((folder / "scored").read_text().split()) == {f"a{n}b": 2 for n in range(16)}
    check_figures(done.run_dir, pool["devices"] // rollout.get("tensor_parallel", 1))
    lost, back = done.summary["replicas"]
    assert named in lost
    assert "died" in lost
    assert "it is started again, 1 of 2 (run.max_restarts)" in lost
    assert named in back
    assert back.endswith("is back, with the current weights")
    served = [line.split() for line in (folder / "served").read_text().splitlines()]
    leads, again = ({"0", "2"}, "0") if form == "pairs" else ({"0", "1"}, "1")
    assert {rank for rank, _, _ in served} == leads
    versions = {version for rank, _, version in served if rank == again}
    assert versions >= {"2", "3"}
    assert len({pid for rank, pid, _ in served if rank == again}) == 1 + (form == "pairs")
