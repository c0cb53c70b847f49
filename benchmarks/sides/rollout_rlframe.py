"""Rollout `torch` or `hf` over the cases of `benchmarks/rollout.py`."""

from __future__ import annotations

import asyncio
import json
import sys

import torch
from rollout_case import Answer, Case, lengths_of, prompts_of, report
from transformers import AutoModelForCausalLM

from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Request, Sampling
from rlframe_plugins.rollouts.hf import HFRollout
from rlframe_plugins.rollouts.torch.engine import TorchRollout


def main() -> None:
    spec = json.loads(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32)
    kind = {"torch": TorchRollout, "hf": HFRollout}[spec["engine"]]
    served = RolloutSpec(spec["model"], ModelConfig(path=spec["model"]))
    engine: RolloutEngine = kind(kind.Config(max_batch=spec["max_batch"]), served)
    engine.load(0, dict(model.named_parameters()))
    report(spec, lambda case: generate(engine, case))


def generate(engine: RolloutEngine, case: Case) -> list[Answer]:
    """Every request at once. `hf` runs requests of any length together, as its users would.

    It has one limit a call: each row is cut where its own would have been.
    """
    wanted, prompts = lengths_of(case), prompts_of(case)
    together = isinstance(engine, HFRollout)
    asked = [
        Request(tuple(prompt), _fixed(max(wanted) if together else length))
        for prompt, length in zip(prompts, wanted, strict=True)
    ]

    async def run() -> list[Answer]:
        done = await asyncio.gather(*[engine.generate(request) for request in asked])
        return [
            (list(one.token_ids[:length]), list(one.logprobs[:length]))
            for one, length in zip(done, wanted, strict=True)
        ]

    return asyncio.run(run())


def _fixed(length: int) -> Sampling:
    return Sampling(max_new_tokens=length, min_new_tokens=length)


if __name__ == "__main__":
    main()
