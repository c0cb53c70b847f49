"""The benchmarks' own arithmetic, and that their rlframe side still finds what it measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SIDES = ROOT / "benchmarks" / "sides"

COUNT = """
import sys, torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM
from parts import products
config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=3,
                     num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
model = LlamaForCausalLM(config)
with FlopCounterMode(display=False) as counter:
    model(torch.ones(1, 7, dtype=torch.int64)).logits.sum().backward()
counts = counter.get_flop_counts()["Global"]
done = sum(n for op, n in counts.items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))
of = products(config, rows=1, prompts=1, prompt=1, new=1)(7, 7)
print(done, of["forward"] + of["logprobs"] + of["backward"] - 2 * 50 * 16 * 7)
"""


def run(*command: str, folder: Path) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SIDES)}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_products_are_those_that_pytorch_counts(tmp_path: Path) -> None:
    """All but the logits that our backward pass makes once more."""
    counted, computed = run("-c", COUNT, folder=tmp_path).split()
    assert float(computed) == float(counted)


@pytest.mark.slow
def test_the_side_tells_every_part_of_a_step(tmp_path: Path) -> None:
    run(str(SIDES / "make_model.py"), str(tmp_path / "model"), folder=tmp_path)
    spec = {
        "model": str(tmp_path / "model"),
        "prompts": ["w3 w4 w5 w6", "w7 w8 w9 w3"],
        "batch": 2,
        "samples": 2,
        "new": 4,
        "prompt": 4,
        "steps": 2,
        "microbatch": 64,
        "profile": True,
    }
    found = json.loads(run(str(SIDES / "rlframe_step.py"), json.dumps(spec), folder=tmp_path))
    assert found["fed_tokens"] == 2 * 4 + 4 * 3
    (parts,) = found["parts_s"]
    names = {"prefill", "decode", "sampling", "forward", "logprobs", "backward", "optimiser"}
    assert parts.keys() == names | {"other"}
    assert all(seconds > 0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(found["step_s"][0])
    assert found["peaks_gb"].keys() == names | {"other"}
    assert found["operators"][0]["calls"] > 0
    assert found["memory_gb"]["peak"] >= found["memory_gb"]["imports"]
