"""Planning and dispatch without a cluster: an update fanned out to echo ranks, and dealing rows.

One process plays 64, 256 and 1,024 ranks: the batch is dealt and cut, each rank's part is pickled
as it would be sent, an echo worker reads its rows and returns a column, results are collected and
indexed. Eight rows a rank, so that time per rank stays alike where nothing is quadratic; it is the
process's own (CPU) time, which a busy machine disturbs least. Then 8,192 sequences of heavy-tailed
lengths are dealt to 128 ranks, timed by both clocks, beside Karmarkar's and Karp's method.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import main, spread, target
from numpy.typing import NDArray
from sides.karmarkar_karp import differencing

from rlframe.batching.balance import deal, sequence_costs
from rlframe.batching.batch import Batch
from rlframe.batching.packed import Packed
from rlframe.batching.plan import UpdatePlan, plan_batch
from rlframe.calling.fan_out import Share, collect, distribute
from rlframe.calling.protocol import DP_METRIC, THREE_D_PROTO, Mesh

WIDTHS, ROWS_A_RANK = (64, 256, 1024), 8
SEQUENCES, RANKS = 8192, 128
VERL = {"free_s": 13.0, "equal_s": 0.12, "equal_uneven": 0.049}
"""What verl 0.9.1 needs for the same dealing; measured before, on the machine of the issue."""

Ints = NDArray[np.int64]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="times that each figure is taken")


def make_batch(rows: int, seed: int) -> Batch:
    """Prompts and responses of uneven lengths in groups of eight, with rewards."""
    rng = np.random.default_rng(seed)
    prompt, response = rng.integers(8, 65, rows), np.minimum(rng.geometric(1 / 64, rows), 512)

    def tokens(lengths: Ints, dtype: str) -> Packed:
        return Packed(np.ones(int(lengths.sum()), dtype), lengths)

    columns = {
        "prompt_ids": tokens(prompt, "int64"),
        "response_ids": tokens(response, "int64"),
        "response_mask": tokens(response, "bool"),
        "rollout_logprobs": tokens(response, "float32"),
        "group_ids": Packed(np.arange(rows, dtype=np.int64) // 8),
        "rewards": Packed(np.zeros(rows, np.float32)),
    }
    return Batch.from_columns(columns)


class Timer:
    """Seconds of each part, added up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, name: str, part: Callable[[], Any]) -> Any:
        """Call, and add its time."""
        started = time.process_time()
        found = part()
        spent = time.process_time() - started
        self.seconds[name] = self.seconds.get(name, 0.0) + spent
        return found


def plan_of(batch: Batch, ranks: int) -> UpdatePlan:
    return plan_batch(
        batch,
        epochs=1,
        minibatch_prompts=0,
        budget=4096,
        ranks=ranks,
    )


def fan_out(ranks: int, seed: int) -> tuple[dict[str, float], int]:
    """Seconds of each part of one inference and one update, and the bytes that are sent."""
    batch, mesh, timer = make_batch(ranks * ROWS_A_RANK, seed), Mesh(dp=ranks), Timer()
    shares = timer.run("deal and cut", lambda: distribute(THREE_D_PROTO, mesh, (batch,)))
    sent = timer.run("pickle", lambda: sum(wire(share) for share in shares))
    results = timer.run("echo", lambda: {r: echo(s) for r, s in enumerate(shares)})
    scored = timer.run(
        "collect", lambda: batch.add_handles(collect(THREE_D_PROTO, mesh, shares, results))
    )
    plan = timer.run("plan", lambda: plan_of(scored, ranks))
    updates = timer.run("cut the plan", lambda: distribute(DP_METRIC, mesh, (scored, plan)))
    sent += timer.run("pickle", lambda: sum(wire(share) for share in updates))
    done = timer.run("echo", lambda: {r: len(s.args[0]) for r, s in enumerate(updates)})
    counts = timer.run("collect", lambda: collect(DP_METRIC, mesh, updates, done))
    assert sum(counts) == len(batch)
    assert np.array_equal(scored.packed("old_logprobs").values, logprobs(batch))
    return timer.seconds, sent


def logprobs(batch: Batch) -> Any:
    return batch.packed("rollout_logprobs").values


def wire(share: Share) -> int:
    """Bytes of what a rank is sent: handles without the blocks, and its plan."""
    sent = []
    for arg in share.args:
        if isinstance(arg, Batch):
            sent.append([{**handle.__getstate__(), "ref": None} for handle in arg.handles()])
        else:
            sent.append(arg)
    return len(pickle.dumps(sent))


def echo(share: Share) -> Any:
    """What a worker does: reads its rows of one column and stores another."""
    batch = share.args[0]
    return batch.transfer.put({"old_logprobs": batch.packed("rollout_logprobs")})


def widths(rounds: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    fan_out(WIDTHS[0], 0)
    for ranks in WIDTHS:
        found = [fan_out(ranks, number) for number in range(rounds)]
        per_rank = [1e6 * sum(parts.values()) / ranks for parts, _ in found]
        out[str(ranks)] = {
            "us_per_rank": spread(per_rank),
            "parts_us_per_rank": {
                name: 1e6 * float(np.median([parts[name] for parts, _ in found])) / ranks
                for name in found[0][0]
            },
            "bytes_per_rank": found[0][1] / ranks,
        }
    return out


def lengths_of(seed: int) -> Ints:
    """Prompts of 256 tokens and log-normal responses, cut at 32,768."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(6.5, 1.0, SEQUENCES), 1, 32768).astype(np.int64) + 256


def dealing(rounds: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    ways: dict[str, Callable[[NDArray[np.float64]], Ints]] = {
        "free": lambda costs: deal(costs, RANKS),
        "equal_counts": lambda costs: deal(costs, RANKS, equal_counts=True),
        "karmarkar_karp": lambda costs: differencing(costs, RANKS),
    }
    for name, way in ways.items():
        seconds, own, uneven = [], [], []
        for number in range(rounds):
            costs = sequence_costs(lengths_of(number))
            started, worked = time.perf_counter(), time.process_time()
            dealt = way(costs)
            seconds.append(time.perf_counter() - started)
            own.append(time.process_time() - worked)
            load = np.bincount(dealt, weights=costs, minlength=RANKS)
            uneven.append(float((load.max() - load.min()) / load.mean()))
        out[name] = {"s": spread(seconds), "cpu_s": spread(own), "uneven": spread(uneven)}
    return out | {"verl_before": VERL}


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    results = {"ranks": widths(arguments.rounds), "dealing": dealing(arguments.rounds)}
    per_rank = {name: one["us_per_rank"]["median"] for name, one in results["ranks"].items()}
    sent = {name: one["bytes_per_rank"] for name, one in results["ranks"].items()}
    first, last = str(WIDTHS[0]), str(WIDTHS[-1])
    free, equal = results["dealing"]["free"], results["dealing"]["equal_counts"]
    return results, [
        target(
            f"time a rank, {last} against {first} ranks",
            per_rank[last] / per_rank[first],
            2,
            below=True,
        ),
        target(
            f"bytes a rank, {last} against {first} ranks", sent[last] / sent[first], 1.2, below=True
        ),
        target("dealing 8,192 to 128, s", free["s"]["median"], 0.2, below=True),
        target("dealing 8,192 to 128, uneven", free["uneven"]["max"], 0.01, below=True),
        target("the same with equal counts, s", equal["s"]["median"], 0.2, below=True),
        target("the same with equal counts, uneven", equal["uneven"]["max"], 0.01, below=True),
    ]


if __name__ == "__main__":
    main(__doc__ or "", measure, options)
