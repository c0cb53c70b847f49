"""Reward model, cost model, DPO and SFT on made-up pairs: right on pairs that were held out."""

from __future__ import annotations

import json
import random

import pytest

import rlframe
from tests.e2e.small import make_model

GOOD, BAD = "abc", "def"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def pairs(path, seed, rows=64):
    """A good response has more letters of the first half of the alphabet, in any order."""
    rng = random.Random(seed)

    def text(mostly, rest):
        letters = [rng.choice(mostly) for _ in range(rng.randint(3, 5))] + [rng.choice(rest)]
        rng.shuffle(letters)
        return "".join(letters)

    lines = []
    for n in range(rows):
        good, bad = text(GOOD, BAD), text(BAD, GOOD)
        row = {"prompt": "xyz"[n % 3], "chosen": good, "rejected": bad, "completion": good}
        lines.append(json.dumps(row | {"chosen_safe": True, "rejected_safe": False}))
    path.write_text("\n".join(lines) + "\n")
    return f"jsonl:{path}"


def learn(tmp_path, model, algo, steps=30, **options):
    done = rlframe.fit(
        algo,
        model=str(model),
        data={
            "train": pairs(tmp_path / "train.jsonl", 1),
            "validate": pairs(tmp_path / "held_out.jsonl", 2),
            "prompts_per_step": 32,
        },
        steps=steps,
        rollout={"name": "torch", "max_new_tokens": 8},
        run={"dir": str(tmp_path / "runs"), "name": algo},
        logger=["jsonl"],
        cluster={"name": "inline", "threads": 1},
        **options,
    )
    lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return done, [one for one in found if "val/loss" in one]


@pytest.mark.parametrize("algo", ["rm", "cost-model", "dpo"])
def test_held_out_pairs_are_ranked_right(tmp_path, model, algo):
    _, held_out = learn(tmp_path, model, algo, optim={"lr": 1e-2})
    first, last = held_out[0], held_out[-1]
    assert first["val/accuracy"] < 0.75
    assert last["val/accuracy"] > 0.95
    assert last["val/loss"] < first["val/loss"] / 2


def test_sft_learns_completions(tmp_path, model):
    _, held_out = learn(tmp_path, model, "sft", optim={"lr": 1e-2})
    assert held_out[-1]["val/loss"] < 0.7 * held_out[0]["val/loss"]


def test_a_reward_model_is_exported_as_a_classifier(tmp_path, model):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from rlframe.cli.main import main

    done, _ = learn(tmp_path, model, "rm", steps=25, optim={"lr": 1e-2})
    assert main(["export", str(done.run_dir), str(tmp_path / "rm")]) == 0
    scorer = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "rm")
    assert scorer.config.num_labels == 1

    def score(text):
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        with torch.no_grad():
            return float(scorer(torch.tensor([ids])).logits)

    assert score("xabcabc") > score("xdefdef") + 0.5
