"""Collectors in processes of their own: the same groups, the same clear errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import rlframe
from rlframe.errors import RewardError
from rlframe.interfaces.loop import Sampler, Scheduler
from tests.e2e.small import letters, make_model, make_questions, options

pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600), pytest.mark.usefixtures("one_ray")]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), make_questions(folder / "questions.jsonl")


def given(inputs, folder, name, **more):
    sampled = {"name": "torch", "max_new_tokens": 6, "batch_invariant": True}
    cluster = {"name": "ray", "call_timeout_s": 300.0, **more.pop("cluster", {})}
    run = {"dir": str(folder), "name": name, "dump_rollouts": True, "samples_every": 0}
    options_of = options(folder, *inputs, rollout=sampled, cluster=cluster, run=run)
    return options_of | {"transfer": "ray"} | more


def logged(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def dumped(run_dir: Path) -> list[str]:
    return [file.read_text() for file in sorted((run_dir / "rollouts").iterdir())]


def test_two_collectors_find_what_one_in_the_controller_finds(inputs, tmp_path):
    inline = {"cluster": {"name": "inline", "threads": 1}, "transfer": "inline"}
    expected = rlframe.fit(**given(inputs, tmp_path, "inline") | inline).run_dir
    found = rlframe.fit(**given(inputs, tmp_path, "ray", cluster={"collectors": 2})).run_dir
    # The first step samples from equal weights; later ones from weights equal up to rounding.
    assert dumped(found)[0] == dumped(expected)[0]
    one, other = logged(expected)[-2], logged(found)[-2]
    same = [n for n in one if n.startswith(("critic/", "reward/", "response_length/", "collect/"))]
    assert len(same) > 8
    assert {n: one[n] for n in same} == {n: other[n] for n in same}
    assert other["actor/loss"] == pytest.approx(one["actor/loss"], abs=1e-5)


def late_fault(response: str) -> float:
    raise ZeroDivisionError(f"my reward met {response!r}")


def test_a_fault_in_a_reward_is_the_same_clear_error(inputs, tmp_path):
    with pytest.raises(RewardError, match="'late_fault' raised ZeroDivisionError: my reward met"):
        rlframe.fit(**given(inputs, tmp_path, "fault", reward=late_fault))


def test_a_dead_collector_is_named_and_started_again(inputs, tmp_path):
    """Killed where it plays and scores, as if the machine's memory had run out."""
    mark = tmp_path / "killed"

    def kills_once(response: str) -> float:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        return letters(response)

    asked = given(inputs, tmp_path, "dead", reward=kills_once)
    asked["run"] |= {"max_restarts": 1, "restart_wait_s": 0.0}
    done = rlframe.fit(**asked)
    assert (done.summary["status"], done.summary["steps"]) == ("finished", 2)
    (restart,) = done.summary["restarts"]
    assert re.search(r"collector.*(died|dead|killed|ended)", restart["reason"])
    groups = [json.loads(line)["group_id"] for text in dumped(done.run_dir)
              for line in text.splitlines()]  # fmt: skip
    assert Counter(groups) == dict.fromkeys(range(8), 2)


SCRIPT = """
import json, sys
import rlframe
from rlframe_algorithms.grpo import GRPO

calls = []

def mine(response):
    calls.append(response)
    return len(response) / 10

class Mine(GRPO):
    def accept(self, group):
        return group.row.group_id % 2 == 1

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    run = rlframe.fit(Mine(samples_per_prompt=2), reward=mine, **options)
    print("called here:", len(calls))
"""


def test_functions_of_a_script_run_in_the_collectors(inputs, tmp_path):
    own = {"collectors": 2, "logical_cpus": 4}
    settings = given(inputs, tmp_path, "script", cluster=own)
    del settings["reward"], settings["algo"]
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "called here: 0" in done.stdout
    lines = logged(tmp_path / "script")
    assert lines[-1]["collect/refused_groups"] > 0
    groups = {json.loads(line)["group_id"] for text in dumped(tmp_path / "script")
              for line in text.splitlines()}  # fmt: skip
    assert groups
    assert all(group % 2 == 1 for group in groups)


def test_what_the_driver_reads_does_not_grow_with_the_responses(inputs, tmp_path):
    """Exactly: the same numbers of rows, whose lengths and summaries are all that it reads.

    Texts for the table of samples, which it reads by the row, are left out.
    """
    read, tokens = {}, {}
    algo = {"name": "grpo", "samples_per_prompt": 2, "kl_coef": 0.01, "epochs": 2}
    for count in (4, 16):
        rollout = {"name": "torch", "max_new_tokens": count, "min_new_tokens": count}
        settings = given(inputs, tmp_path, f"t{count}")
        settings |= {"rollout": rollout, "algo": algo}
        settings["run"] |= {"dump_rollouts": False, "samples_every": 0}
        run_dir = rlframe.fit(**settings).run_dir
        lines = [line for line in logged(run_dir) if "perf/driver_bytes" in line]
        read[count] = [line["perf/driver_bytes"] for line in lines]
        tokens[count] = [line["perf/total_num_tokens"] for line in lines]
    assert read[4] == read[16]
    assert len(read[4]) == 2
    assert all(0 < number < 8 * 200 for number in read[4]), "rows x what is known of a row"
    assert all(long > 2 * short for short, long in zip(tokens[4], tokens[16], strict=True))


class FromBothEnds(Sampler):
    """The newest, then the oldest: groups of one block are learned from in different steps."""

    def choose(self, waiting, count, version):
        order = sorted(range(len(waiting)), key=lambda i: waiting[i].group_id)
        return order[:count] if version % 2 else order[-count:]


class Surplus(Scheduler):
    """Draws more than a step takes; what waits after a step can be read, all else is freed."""

    def run(self, orchestrator):
        orchestrator.buffer._sampler = FromBothEnds()
        seen = {}
        while not orchestrator.done:
            rows = orchestrator.stream.draw(4)
            found = orchestrator.parts.collector.collect(rows).result()
            orchestrator.buffer.put(found.accepted)
            batch = orchestrator.collect()
            seen |= {handle.key: handle for handle in batch.handles()}
            metrics = orchestrator.learn(batch)
            orchestrator.publish()
            waiting = list(orchestrator.buffer)
            alive = {handle.key for group in waiting for handle in group.batch.handles()}
            for group in waiting:
                texts = group.batch.packed("response_text")
                assert len(group.batch.packed("response_ids")) == len(texts) == group.rows
            stored = {key: one.ref.object for key, one in seen.items() if one.ref is not None}
            gone = {key for key, block in stored.items() if block is None}
            assert {key for key in stored if key not in alive} == gone
            counted = {"refused": found.refused, "waiting": waiting, "gone": gone}
            yield metrics | {name: float(len(those)) for name, those in counted.items()}


def right_half(response: str) -> float:
    """Right or wrong, so that dapo refuses groups in which all are alike."""
    return float(sum(character in "abcdefghijklm" for character in response) >= 3)


def test_blocks_that_waiting_groups_share_are_kept_until_the_last_is_learned(inputs, tmp_path):
    algo = {"name": "dapo", "samples_per_prompt": 4}
    where = {"name": "tests.e2e.test_ray_collectors:Surplus"}
    more = {"algo": algo, "scheduler": where, "steps": 6, "reward": right_half}
    more |= {"data.prompts_per_step": 2, "data.max_refills": 30}
    lines = logged(rlframe.fit(**given(inputs, tmp_path, "dapo", **more)).run_dir)
    steps = [line for line in lines if "waiting" in line]
    assert len(steps) == 6
    assert sum(line["refused"] for line in steps) > 0
    assert max(line["waiting"] for line in steps) > 0
    gone = [line["gone"] for line in steps]
    assert gone == sorted(gone)
    assert gone[-1] > gone[0], gone
