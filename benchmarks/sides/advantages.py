"""One side of the comparison of advantages: ``python advantages.py rlframe|verl [METHOD]``.

Prints a JSON line: seconds of each repetition, and figures of the results, to compare the sides.
With a method, the share of its time in each of torch's operators instead.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

GAMMA, LAM, GROUP = 1.0, 0.95, 8
REPEAT = {"gae": 3, "reinforce++": 3, "grpo": 30}


def inputs(rows: int, tokens: int) -> dict[str, Tensor]:
    """Random rewards and values over responses of unequal lengths, whole groups of eight."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(tokens // 8, tokens + 1, (rows,), generator=generator)
    mask = torch.arange(tokens) < lengths[:, None]
    outcome = torch.randint(0, 2, (rows,), generator=generator).float()
    rewards = 0.01 * torch.randn(rows, tokens, generator=generator)
    rewards[torch.arange(rows), lengths - 1] += outcome
    values = torch.randn(rows, tokens, generator=generator)
    last = torch.zeros(rows, tokens)
    last[torch.arange(rows), lengths - 1] = outcome
    return {
        "mask": mask,
        "lengths": lengths,
        "outcome": outcome,
        "rewards": torch.where(mask, rewards, 0.0),
        "values": torch.where(mask, values, 0.0),
        "last": last,
        "groups": torch.arange(rows) // GROUP,
    }


def rlframe_side(
    large: dict[str, Tensor], small: dict[str, Tensor]
) -> dict[str, Callable[[], Tensor]]:
    from rlframe import ops

    columns = {
        "rewards": small["outcome"],
        "group_ids": small["groups"],
        "episode_ids": torch.arange(len(small["outcome"])),
        "train": torch.ones(len(small["outcome"]), dtype=torch.bool),
        "response_tokens": small["lengths"],
    }

    def gae() -> Tensor:
        found, _ = ops.gae(large["rewards"], large["values"], large["mask"], GAMMA, LAM)
        return ops.masked_whiten(found, large["mask"])

    def reinforce() -> Tensor:
        returns = ops.reward_to_go(large["rewards"], large["mask"], GAMMA)
        return ops.masked_whiten(returns, large["mask"])

    def grpo() -> Tensor:
        return torch.where(small["mask"], ops.group_normalised(columns)[:, None], 0.0)

    return {"gae": gae, "reinforce++": reinforce, "grpo": grpo}


def verl_side(
    large: dict[str, Tensor], small: dict[str, Tensor]
) -> dict[str, Callable[[], Tensor]]:
    from omegaconf import OmegaConf
    from verl.trainer.ppo import core_algos

    config: Any = OmegaConf.create({"gamma": GAMMA})
    mask, index = large["mask"].float(), small["groups"].numpy()
    short = small["mask"].float()

    def gae() -> Tensor:
        found = core_algos.compute_gae_advantage_return(
            large["rewards"], large["values"], mask, GAMMA, LAM
        )
        return found[0] * mask

    def reinforce() -> Tensor:
        return core_algos.compute_reinforce_plus_plus_outcome_advantage(
            large["rewards"], mask, config=config
        )[0]

    def grpo() -> Tensor:
        return core_algos.compute_grpo_outcome_advantage(small["last"], short, index)[0]

    return {"gae": gae, "reinforce++": reinforce, "grpo": grpo}


def timed(function: Callable[[], Tensor], repeat: int) -> list[float]:
    out = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        out.append(time.perf_counter() - start)
    return out


def watched(function: Callable[[], Tensor]) -> dict[str, float]:
    """Share of the time in the ten operators that take most."""
    from torch.profiler import ProfilerActivity, profile

    function()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        function()
    totals = {one.key: one.self_cpu_time_total for one in seen.key_averages()}
    whole = sum(totals.values())
    most = sorted(totals, key=totals.__getitem__, reverse=True)[:10]
    return {name: round(totals[name] / whole, 3) for name in most}


def main() -> None:
    large, small = inputs(1024, 4096), inputs(512, 512)
    functions = {"rlframe": rlframe_side, "verl": verl_side}[sys.argv[1]](large, small)
    if len(sys.argv) > 2:
        with torch.no_grad():
            print(json.dumps({"operators": watched(functions[sys.argv[2]])}))
        return
    seconds, sums = {}, {}
    with torch.no_grad():
        for name, function in functions.items():
            found = function()
            row = found[: len(found) // 2 : 7].double()
            sums[name] = [
                float(x) for x in (row.abs().mean(), row.square().mean(), row[:, 5].sum())
            ]
            seconds[name] = timed(function, REPEAT[name])
    print(json.dumps({"seconds": seconds, "sums": sums}))


if __name__ == "__main__":
    main()
