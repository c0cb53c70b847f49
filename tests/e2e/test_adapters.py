"""Adapters through a whole run: learned, resumed, merged; the reference is their base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import rlframe
from rlframe.cli.main import main
from rlframe.recording.callbacks import Callback
from rlframe_strategies.base import TorchStrategy
from tests.e2e.small import make_model, make_questions, options

KL = {"name": "grpo", "samples_per_prompt": 2, "kl_coef": 0.1}
LORA = {"rank": 4, "alpha": 8.0}


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return make_model(folder / "model"), make_questions(folder / "questions.jsonl")


@pytest.fixture
def built(monkeypatch):
    """Every strategy that builds a model, and whether it trains it."""
    found = []
    plain = TorchStrategy.build

    def build(self, spec):
        found.append(spec.optim is not None)
        return plain(self, spec)

    monkeypatch.setattr(TorchStrategy, "build", build)
    return found


class Reads(Callback):
    """The weights that a rollout engine computes with are the trainer's, merged."""

    same: list[bool] = []  # noqa: RUF012

    def on_step_end(self, orchestrator, metrics):
        engines = orchestrator.roles["policy"]._worker.engines
        mine = engines["policy"]._strategy.views()
        weights = engines["rollout"].weights()
        self.same.append(all(torch.equal(weights[name], view) for name, view in mine.items()))


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_the_reference_is_the_base_and_has_no_weights(inputs, built, tmp_path, strategy):
    given = options(tmp_path, *inputs, strategy=strategy, algo=KL, steps=3, callback=[Reads])
    given["model"] = {"path": given["model"], "lora": LORA}
    Reads.same.clear()
    rlframe.fit(**given, optim={"lr": 0.05})
    assert built == [True]
    assert Reads.same == [True] * 3
    kl = [line["actor/kl_loss"] for line in lines_of(tmp_path / "runs" / "run")]
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[2] > 1e-4


def test_a_reference_of_its_own_gives_the_same(inputs, built, tmp_path):
    runs = []
    for name, roles in (("shared", {}), ("own", {"reference": {"model": {"attn": "eager"}}})):
        given = options(tmp_path / name, *inputs, algo=KL, steps=2, roles=roles)
        given["model"] = {"path": given["model"], "lora": LORA}
        rlframe.fit(**given, optim={"lr": 0.05})
        runs.append(lines_of(tmp_path / name / "runs" / "run"))
    assert built == [True, True, False]
    for one, other in zip(*runs, strict=True):
        for figure in ("actor/kl_loss", "actor/grad_norm", "critic/rewards/mean"):
            assert one[figure] == pytest.approx(other[figure], rel=1e-3, abs=1e-5)


def test_a_critic_learns_by_adapters_and_its_head(inputs, tmp_path):
    algo = {"name": "ppo", "samples_per_prompt": 2, "kl_coef": 0.0}
    given = options(tmp_path, *inputs, algo=algo, steps=2)
    given["model"] = {"path": given["model"], "lora": LORA}
    rlframe.fit(**given, optim={"lr": 0.05})
    for line in lines_of(tmp_path / "runs" / "run"):
        assert line["critic/grad_norm"] > 0
    saved = tmp_path / "runs" / "run" / "snapshots" / "step-000002" / "critic"
    boxes = json.loads((saved / "rank-00000.json").read_text())["boxes"]
    names = {box["name"] for box in boxes}
    assert {"score.weight", "score.bias"} < names
    assert all("lora" in name or name.startswith("score.") for name in names)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_adapters_learn_to_add_go_on_and_are_merged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    short = ("run.validation_prompts=128", "run.validate_every=0", "run.name=low")
    first = ("model.lora.rank=8", "optim.lr=5e-3", "steps=7", "cluster.threads=1", *short)
    assert main(["fit", "--algo", "grpo", "--strategy", "ddp", *first]) == 0
    assert main(["fit", "--resume", "runs/low", "steps=9"]) == 0
    summary = json.loads(Path("runs/low/summary.json").read_text())
    assert summary["val_before"] < 0.6
    assert summary["val_after"] > 0.7
    assert main(["export", "runs/low", "merged"]) == 0
    test = ("--data", "builtin:arithmetic?split=test", "--limit", "128", "--json")
    for model in ("merged", "runs/low"):
        capsys.readouterr()
        assert main(["eval", model, *test, "cluster.threads=1"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["figures"]["reward/mean"] == summary["val_after"]
