"""The controller holds summaries and handles: what it reads does not grow with the tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from rlframe.interfaces.loop import Sampler, Scheduler
from rlframe.snapshots.snapshot import SnapshotStore
from rlframe_plugins.transfer.inline import InlineTransfer
from tests.e2e.small import make_model, make_questions, options, steady

STEPS = 4


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), make_questions(folder / "questions.jsonl")


def logged(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def run(inputs, folder, tokens, **more):
    algo = {"name": "grpo", "samples_per_prompt": 2, "kl_coef": 0.01, "epochs": 2}
    given = {"rollout": {"name": "torch", "max_new_tokens": tokens, "min_new_tokens": tokens}}
    given |= {"algo": algo, "steps": 2, **more}
    given["run"] = {"dir": str(folder), "name": f"t{tokens}", **given.get("run", {})}
    return rlframe.fit(**options(folder, *inputs, **given)).run_dir


def test_what_the_controller_reads_does_not_grow_with_the_tokens(inputs, tmp_path):
    quiet = {"run": {"samples_every": 0}}
    short, long = (logged(run(inputs, tmp_path, tokens, **quiet)) for tokens in (2, 24))
    for one, other in zip(short[-2:], long[-2:], strict=True):
        assert other["perf/total_num_tokens"] > 2 * one["perf/total_num_tokens"]
        assert one["perf/driver_bytes"] == other["perf/driver_bytes"]
        rows = 8
        assert 0 < one["perf/driver_bytes"] < 200 * rows


def test_samples_and_dumps_are_the_only_rows_read(inputs, tmp_path):
    folder = run(inputs, tmp_path / "shown", 8, run={"samples_every": 2})
    shown, samples = logged(folder), (folder / "samples.jsonl").read_text().splitlines()
    quiet = logged(run(inputs, tmp_path / "quiet", 8, run={"samples_every": 0}))
    dumped = logged(run(inputs, tmp_path / "d", 8, run={"samples_every": 0, "dump_rollouts": True}))
    read = [lines[-1]["perf/driver_bytes"] for lines in (quiet, shown, dumped)]
    texts = [json.loads(line) for line in samples if json.loads(line)["step"] == 2]
    assert len(texts) == 3
    letters = sum(len((t["prompt"] + t["response"]).encode()) for t in texts)
    coloured = 3 * (8 * (8 + 4 + 1 + 4) + 4 * 8)  # id, log-probability, mask, advantage; lengths
    episodes = 8 * 8
    assert read[1] - read[0] == letters + coloured + episodes
    token = 8 + 4 + 4  # id, log-probability, version
    assert read[2] - read[0] >= token * 8 * 8


class Ahead(Scheduler):
    """Collects more than a step takes, so that groups wait, and reports how many."""

    def run(self, orchestrator) -> Iterator[dict[str, float]]:
        while not orchestrator.done:
            rows = orchestrator.stream.draw(3)
            orchestrator.buffer.put(orchestrator.parts.collector.collect(rows).result().accepted)
            batch = orchestrator.collect()
            metrics = orchestrator.learn(batch)
            orchestrator.publish()
            yield {**metrics, "waiting": float(len(orchestrator.buffer))}


AHEAD = {"name": "tests.e2e.test_controller_holds_handles:Ahead"}
BATCH_INVARIANT = {"name": "torch", "max_new_tokens": 6, "batch_invariant": True}


def ahead(inputs, folder, **more):
    given = {"steps": STEPS, "scheduler": AHEAD, "rollout": BATCH_INVARIANT, **more}
    given["run"] = {"dir": str(folder), "name": "run", "save_every": 1, "keep": 9}
    given["data.prompts_per_step"] = 2
    return options(folder, *inputs, **given)


def figures(run_dir):
    return [steady(line) for line in logged(run_dir)]


def weights(run_dir):
    newest = SnapshotStore(run_dir).latest()
    assert newest.step == STEPS
    found = sorted((newest.path / "policy").glob("*.safetensors"))
    return {f"{file.name}/{n}": t for file in found for n, t in load_file(file).items()}


def test_groups_that_wait_are_resumed_exactly(inputs, tmp_path):
    whole = rlframe.fit(**ahead(inputs, tmp_path / "whole")).run_dir
    assert [line["waiting"] for line in figures(whole)] == [1.0, 2.0, 3.0, 4.0]
    broken = rlframe.fit(**ahead(inputs, tmp_path / "broken", steps=2)).run_dir
    resumed = rlframe.fit(resume=broken, steps=STEPS).run_dir
    assert figures(resumed)[-2:] == figures(whole)[-2:]
    expected, found = weights(whole), weights(resumed)
    assert expected
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


class Watched(InlineTransfer):
    """Knows how many blocks lie here."""

    peak = 0
    live: dict[str, str] = {}

    def put(self, columns):
        handles = super().put(columns)
        self.live.update({handle.key: name for name, handle in handles.items()})
        Watched.peak = max(Watched.peak, len(self.live))
        return handles

    def get(self, pieces):
        for handle, _ in pieces:
            assert handle.key in self.live, f"a freed block of '{handle.column}' is read"
        return super().get(pieces)

    def free(self, handles):
        for handle in handles:
            del self.live[handle.key]


class NewestFirst(Sampler):
    """So that groups of one block are learned from in different steps."""

    def choose(self, waiting, count, version):
        order = sorted(range(len(waiting)), key=lambda i: -waiting[i].group_id)
        return order[:count]


class AheadNewest(Ahead):
    """Takes the newest groups."""

    def run(self, orchestrator):
        orchestrator.buffer._sampler = NewestFirst()
        yield from super().run(orchestrator)


def test_blocks_are_freed_with_their_last_row_and_never_before(inputs, tmp_path):
    Watched.live.clear()
    where = "tests.e2e.test_controller_holds_handles"
    more = {"transfer": {"name": f"{where}:Watched"}, "scheduler": {"name": f"{where}:AheadNewest"}}
    rlframe.fit(**ahead(inputs, tmp_path, **more))
    left = sorted(Watched.live.values())
    # Of each collection one group still waits: its block of every column that is stored.
    assert left
    assert len(left) == STEPS * len(set(left))
    assert "old_logprobs" not in left
