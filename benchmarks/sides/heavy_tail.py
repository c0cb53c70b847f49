"""One rollout of heavy-tailed lengths by one engine, and how training would pack its rows."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM

from rlframe.batching.plan import plan_update
from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe_plugins.rollouts.hf import HFRollout
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from rlframe_strategies.packing import make_inputs

BUDGET = 8192
"""Tokens of a micro-batch, as where nothing is said."""


def main() -> None:
    spec = json.loads(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32)
    engine = make_engine(spec, model)
    run(engine, requests(spec, new=2)[:4])  # memory and kernels of the first call
    before = dict(engine.stats())
    start = time.perf_counter()
    done = run(engine, requests(spec, new=spec["most"]))
    seconds = time.perf_counter() - start
    parts = {k: v - before[k] for k, v in engine.stats().items() if k.endswith("_s")}
    lengths = [len(one.token_ids) for one in done]
    assert all(len(one.logprobs) == n for one, n in zip(done, lengths, strict=True))
    packing = waste(model, spec["prompt"], lengths, spec["samples"])
    print(
        json.dumps({"seconds": seconds, "lengths": lengths, "parts_s": parts, "packing": packing})
    )


def make_engine(spec: dict[str, Any], model: Any) -> RolloutEngine:
    served = RolloutSpec(spec["model"], ModelConfig(path=spec["model"]), seed=spec["seed"])
    kind = {"torch": TorchRollout, "hf": HFRollout}[spec["engine"]]
    engine: RolloutEngine = kind(kind.Config(max_batch=spec["max_batch"]), served)
    engine.load(0, dict(model.named_parameters()))
    return engine


def requests(spec: dict[str, Any], new: int) -> list[Request]:
    """Every ``mean``-th word of the vocabulary ends a response."""
    words = random.Random(spec["seed"])
    ends = tuple(range(spec["mean"] - 1, 4096, spec["mean"]))
    sampling = Sampling(max_new_tokens=new, stop_token_ids=ends)
    prompts = [
        tuple(words.randrange(3, 4096) for _ in range(spec["prompt"]))
        for _ in range(spec["prompts"])
    ]
    return [
        Request(prompt, sampling, group_id=group, episode_id=group * spec["samples"] + sample)
        for group, prompt in enumerate(prompts)
        for sample in range(spec["samples"])
    ]


def run(engine: RolloutEngine, asked: list[Request]) -> list[Completion]:
    async def all_at_once() -> list[Completion]:
        return await asyncio.gather(*[engine.generate(request) for request in asked])

    return asyncio.run(all_at_once())


def waste(model: Any, prompt: int, responses: list[int], samples: int) -> dict[str, float]:
    """Shares of what the forward pass of training computes for nothing.

    The rows are planned and laid out as a strategy does. ``tokens`` counts fed tokens, ``grids``
    places in the grids of attention, ``operations`` products of all layers (the head, which sees
    response tokens only, is left out); ``padded`` is the share of tokens in one padded batch.
    """
    response = np.array(responses)
    lengths = response + prompt
    fed_n = lengths - 1
    groups = np.arange(len(lengths)) // samples
    plan = plan_update(lengths, groups, epochs=1, minibatch_prompts=0, budget=BUDGET)
    fed, grids = 0, []
    for rows in plan.minibatches[0].micros[0]:
        inputs = make_inputs(_micro(prompt, response[rows]), packed=True, masked=False, whole=False)
        fed += inputs.input_ids.numel()
        chunks = inputs.segments.chunks if inputs.segments is not None else [inputs]
        grids += [chunk.longest for chunk in chunks for _ in range(chunk.rows)]
    layers = sum(p.numel() for p in model.model.layers.parameters())
    width = model.config.num_hidden_layers * model.config.hidden_size

    def operations(tokens: int, widths: Any) -> float:
        return 2.0 * layers * tokens + 2.0 * width * float((np.asarray(widths) ** 2).sum())

    return {
        "tokens": 1 - int(fed_n.sum()) / fed,
        "grids": 1 - int(fed_n.sum()) / sum(grids),
        "operations": 1 - operations(int(fed_n.sum()), fed_n) / operations(fed, grids),
        "padded": 1 - int(fed_n.sum()) / (len(lengths) * int(fed_n.max())),
    }


def _micro(prompt: int, response: np.ndarray[Any, Any]) -> TensorDict:
    rows = len(response)
    return TensorDict(
        {
            "prompt_ids": torch.ones(rows, prompt, dtype=torch.int64),
            "response_ids": torch.ones(rows, int(response.max()), dtype=torch.int64),
            "prompt_lengths": torch.full((rows,), prompt),
            "response_lengths": torch.from_numpy(response),
        },
        batch_size=[rows],
    )


if __name__ == "__main__":
    main()
