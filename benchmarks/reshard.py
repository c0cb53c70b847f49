"""Weights from training layout to generation layout: rlframe's executor beside a plain all-gather.

``python benchmarks/reshard.py [--json]``. Eight gloo processes on this machine, forked after the
import, hold a random Llama in float32 in a training layout and bring it into a generation layout:

- 1-4-2 to 1-2-2-2 and 2-2-2 to 1-2-2-2 (tensor and pipeline sizes that shrink), each by
  ``zero-redundancy``, by ``vanilla`` (gather the replica, keep the own part) and by ``gather-all``
  (from ZeRO-3's flat partitions of all ranks);
- FSDP over 8 ranks to whole weights on each.

In the same turn one plain ``all_gather_into_tensor`` of as many bytes a rank runs in groups of the
same size, from a ready buffer to a ready one: what it takes is the floor, and the share of its
speed the target. Every result is compared with slices of the whole tensors. A time is that of the
slowest rank; the memory is what a rank's peak rises by in a first run, all buffers included.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import main, spread, target
from transformers import AutoModelForCausalLM, LlamaConfig

from rlframe.calling.protocol import Mesh
from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.dist import join, run_ranks
from rlframe.weights.layout import Layout, ParamInfo, Plan
from rlframe.weights.model_cuts import cuts_of_model
from rlframe.weights.moving import Mover
from rlframe.weights.sharding import Cut, flat_layout, grid_layout
from rlframe.weights.storage import allocate, dtypes, local_view
from rlframe_plugins.resharders.gather_all import GatherAll
from rlframe_plugins.resharders.vanilla import Vanilla
from rlframe_plugins.resharders.zero_redundancy import ZeroRedundancy
from rlframe_strategies.fsdp import dim0_layout

WORLD = 8
MESHES = {
    "1-4-2 to 1-2-2-2": Mesh(dp=2, pp=1, tp=4, pg=1, tg=2),
    "2-2-2 to 1-2-2-2": Mesh(dp=2, pp=2, tp=2, pg=1, tg=2),
}
WHOLE = "fsdp 8 to whole"
ZERO = "zero-redundancy"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="times that each way is taken")
    parser.add_argument("--hidden", type=int, default=512, help="width of the model")
    parser.add_argument("--bucket-mib", type=int, default=64, help="checkpoint.bucket_mib")


def model(hidden: int) -> tuple[dict[str, ParamInfo], dict[str, Cut]]:
    """A Llama with the proportions of a large one; nothing is made but shapes."""
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=8192,
    )
    with torch.device("meta"):
        return cuts_of_model(AutoModelForCausalLM.from_config(config), "float32")


def ways(hidden: int) -> dict[str, dict[str, Plan]]:
    params, cuts = model(hidden)
    zero = ZeroRedundancy(ZeroRedundancy.Config())
    out: dict[str, dict[str, Plan]] = {}
    for name, mesh in MESHES.items():
        train = grid_layout(params, cuts, mesh)
        strided, adjacent = (grid_layout(params, cuts, mesh, g) for g in ("strided", "adjacent"))
        out[name] = {
            ZERO: zero.plan(train, strided),
            "vanilla": Vanilla().plan(train, adjacent),
            "gather-all": GatherAll().plan(flat_layout(params, WORLD), adjacent),
        }
    out[WHOLE] = {ZERO: zero.plan(dim0_layout(params, WORLD), Layout.full(params, WORLD))}
    return out


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    plans = ways(arguments.hidden)
    params = plans[WHOLE][ZERO].source.params
    size = sum(4 * _size(info) for info in params.values())
    results: dict[str, Any] = {"model_bytes": size, "ranks": WORLD}
    for case, of_case in plans.items():
        seen = run_ranks(
            ranks_part, WORLD, of_case, arguments.rounds, arguments.bucket_mib, timeout_s=600.0
        )
        results[case] = {
            way: figures([one[way] for one in seen], size, plan) for way, plan in of_case.items()
        }
    return results, targets(results)


def ranks_part(
    rank: RankInfo, plans: dict[str, Plan], rounds: int, bucket_mib: int
) -> dict[str, dict[str, Any]]:
    """One rank's figures of every way; ways and their floors in turn."""
    from torch import distributed as dist

    join(rank)
    sides = {way: Side(rank.rank, plan, bucket_mib) for way, plan in plans.items()}
    for side in sides.values():
        side.first_run()
    for _ in range(rounds):
        for side in sides.values():
            for name, part in side.parts().items():
                dist.barrier()
                started = time.perf_counter()
                part()
                side.seconds.setdefault(name, []).append(time.perf_counter() - started)
    for side in sides.values():
        side.look_closely()
    dist.barrier()
    return {way: side.figures() for way, side in sides.items()}


class Side:
    """One plan on one rank, and the plain all-gather of as many bytes."""

    def __init__(self, rank: int, plan: Plan, bucket_mib: int) -> None:
        from torch import distributed as dist

        self.rank, self.plan = rank, plan
        self.views = filled(plan.source, rank)
        self.mover = Mover(plan, rank, torch.device("cpu"), bucket_mib=bucket_mib)
        self.seconds: dict[str, list[float]] = {}
        members = max(len(self.mover.members), 1)
        starts = range(0, WORLD, members)
        groups = [dist.new_group(list(range(s, s + members))) for s in starts]
        self.group = groups[rank // members]
        most = torch.tensor(self.mover.received)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        share = -(-int(most) // max(members - 1, 1))
        self.mine = torch.ones(share, dtype=torch.uint8)
        self.whole = torch.ones(share * members, dtype=torch.uint8)

    def first_run(self) -> None:
        """Check every element, and see by how much the peak of memory rises."""
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        out = self.mover.run(self.views)
        self.peak = max(_status("VmHWM") - before, 0)
        for piece in self.plan.target.ranks[self.rank]:
            wanted = canonical(self.plan.target, piece.name)[piece.box.slices()]
            assert torch.equal(local_view(piece, out[piece.view.key]), wanted), piece.name
        self.gather()

    def gather(self) -> None:
        from torch import distributed as dist

        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(self.whole, self.mine, group=self.group)

    def parts(self) -> dict[str, Any]:
        return {"rlframe": lambda: self.mover.run(self.views), "plain": self.gather}

    def look_closely(self) -> None:
        """One more run with a clock on its parts."""
        spent: dict[str, float] = {}
        started = time.perf_counter()
        self.mover.run(self.views, clock=spent)
        self.spent = {"all": time.perf_counter() - started, **spent}

    def figures(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "received": self.mover.received,
            "target": self.mover.extra_bytes,
            "staging": self.mover.staging_bytes,
            "peak": self.peak,
            "parts_s": self.spent,
        }


def filled(layout: Layout, rank: int) -> dict[str, torch.Tensor]:
    """A rank's buffers with its part of the whole tensors."""
    buffers = allocate(layout.ranks[rank], dtypes(layout.params), torch.device("cpu"))
    for piece in layout.ranks[rank]:
        if piece.box.size:
            part = canonical(layout, piece.name)[piece.box.slices()]
            local_view(piece, buffers[piece.view.key]).copy_(part)
    return buffers


def canonical(layout: Layout, name: str) -> torch.Tensor:
    """The whole parameter: another number everywhere, the same on every rank."""
    info = layout.params[name]
    first = float(sum(map(ord, name)))
    return (torch.arange(_size(info), dtype=torch.float32) + first).view(info.shape)


def figures(seen: list[dict[str, Any]], model_bytes: int, plan: Plan) -> dict[str, Any]:
    """Of all ranks: the slowest's time of each round, bytes, memory."""
    slowest = {
        side: [max(of_round) for of_round in zip(*(s["seconds"][side] for s in seen), strict=True)]
        for side in ("rlframe", "plain")
    }
    received = [one["received"] for one in seen]
    seconds = {side: statistics.median(values) for side, values in slowest.items()}
    late = max(seen, key=lambda one: one["parts_s"]["all"])["parts_s"]
    return {
        "seconds": {side: spread(values) for side, values in slowest.items()},
        "gb_per_s": {side: sum(received) / 1e9 / one for side, one in seconds.items()},
        "share_of_plain": spread(
            [b / a for a, b in zip(slowest["rlframe"], slowest["plain"], strict=True)]
        ),
        "received_bytes": {"most": max(received), "all": sum(received)},
        "received_share_of_model": max(received) / model_bytes,
        "moves": len(plan.moves),
        "peak_extra_bytes": max(one["peak"] for one in seen),
        "buffers_bytes": {name: max(one[name] for one in seen) for name in ("target", "staging")},
        "profile_of_slowest_rank_s": late,
    }


def targets(results: dict[str, Any]) -> list[dict[str, Any]]:
    out = []
    for case in (*MESHES, WHOLE):
        share = results[case][ZERO]["share_of_plain"]["median"]
        out.append(target(f"{case}: share of a plain all-gather's speed", share, 0.5))
        peak, buffers = (
            results[case][ZERO]["peak_extra_bytes"],
            results[case][ZERO]["buffers_bytes"],
        )
        out.append(
            target(
                f"{case}: peak extra memory, of target and buckets",
                peak / max(sum(buffers.values()), 1),
                1.1,
                below=True,
            )
        )
    for case in MESHES:
        zero = results[case][ZERO]
        for way in ("vanilla", "gather-all"):
            other = results[case][way]
            fewer = other["received_bytes"]["all"] / zero["received_bytes"]["all"]
            faster = other["seconds"]["rlframe"]["median"] / zero["seconds"]["rlframe"]["median"]
            out.append(target(f"{case}: bytes of {way}, times zero-redundancy's", fewer, 1))
            out.append(target(f"{case}: time of {way}, times zero-redundancy's", faster, 1))
    return out


def _size(info: ParamInfo) -> int:
    count = 1
    for extent in info.shape:
        count *= extent
    return count


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    if not sys.platform.startswith("linux"):
        raise SystemExit("this benchmark forks its ranks and reads /proc: run it on Linux")
    main(__doc__ or "", measure, options, quick={"rounds": 1})
