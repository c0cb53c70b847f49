"""Weights from trainers to a rollout replica in another pool, beside a plain copy of as many bytes.

``python benchmarks/weight_sync.py [--json]``. Two trainer processes hold a random Llama in float32
as FSDP shards; a third process is a replica that wants it whole. rlframe's transports give it one
version after the other: ``shm`` and ``disk`` with the codecs ``full`` and ``delta``, and
``collective``; with float32 on the wire, and with bfloat16 where the replica serves that. A time
runs from the trainers' weights until the replica holds all of a version, checked, beside the one
that it serves.

Between two versions as many bfloat16 weights change as in a step of the shipped task, which a real
run measures first, at a learning rate of 1e-6 and at the task's own. In every turn a memcpy of as
many bytes runs as well, from a warm buffer to a warm one: its share is the target; the conversion
of as many float32 weights, a plain send over gloo, and a plain file written and read are told
beside it. On a busy machine, where three processes wait for a core and one memcpy does not, look at
the seconds of the CPU: those of the slower trainer and of the replica, which follow each other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import main, side, spread, target
from reshard import filled, model
from sides.controller_shared import Peak

from rlframe.interfaces.checkpoint import BaseWeights
from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.dist import join, run_ranks
from rlframe.weights.layout import Layout, ParamInfo, Plan
from rlframe_plugins.checkpoint.transport import TransportCheckpoint
from rlframe_plugins.codecs.delta import DeltaCodec
from rlframe_plugins.codecs.full import FullCodec
from rlframe_plugins.resharders.zero_redundancy import ZeroRedundancy
from rlframe_plugins.transports.collective import CollectiveTransport
from rlframe_plugins.transports.files import DiskTransport
from rlframe_plugins.transports.shm import SharedMemoryTransport
from rlframe_strategies.fsdp import dim0_layout

TRAINERS = 2
RATES = (1e-6, 2e-4)
"""Learning rates of the run that tells how many weights change; the shipped task's is the last."""
WAYS: dict[str, tuple[Any, Any]] = {
    "shm full": (SharedMemoryTransport, FullCodec),
    "shm delta": (SharedMemoryTransport, DeltaCodec),
    "disk full": (DiskTransport, FullCodec),
    "disk delta": (DiskTransport, DeltaCodec),
    "collective": (CollectiveTransport, FullCodec),
}
DTYPES = ("float32", "bfloat16")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="versions that each way sends")
    parser.add_argument("--hidden", type=int, default=512, help="width of the model")
    parser.add_argument("--steps", type=int, default=6, help="steps of the real run")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    changes = {str(rate): changed(arguments.steps, rate) for rate in RATES}
    rate = changes[str(RATES[0])]["bfloat16_changed"]["median"]
    params, _ = model(arguments.hidden)
    results: dict[str, Any] = {
        "changes_by_learning_rate": changes,
        "changed_between_versions": rate,
    }
    for dtype in DTYPES:
        wanted = {name: ParamInfo(info.shape, dtype) for name, info in params.items()}
        source = dim0_layout(params, TRAINERS).beside(after=1)
        whole = Layout.full(wanted, 1).beside(before=TRAINERS)
        plan = ZeroRedundancy(ZeroRedundancy.Config()).plan(source, whole)
        with tempfile.TemporaryDirectory() as folder:
            seen = run_ranks(
                ranks_part,
                TRAINERS + 1,
                plan,
                Path(folder),
                arguments.rounds,
                rate,
                timeout_s=900.0,
            )
        results[dtype] = figures(seen)
    return results, targets(results)


def changed(steps: int, rate: float) -> dict[str, Any]:
    rows = side(sys.executable, "weight_changes.py", str(steps), str(rate), threads=1)["steps"]
    return {name: spread([row[name] for row in rows]) for name in rows[0]}


def ranks_part(
    rank: RankInfo, plan: Plan, folder: Path, rounds: int, rate: float
) -> dict[str, dict[str, Any]]:
    """One rank's figures; ways and floors in turn."""
    join(rank)
    views = filled(plan.source, rank.rank)
    ways = {name: Way(name, rank, plan, folder, views) for name in WAYS}
    floors = Floors(rank.rank, sum(_bytes(plan, move) for move in plan.moves), folder)
    random = torch.Generator().manual_seed(rank.rank)
    for way in ways.values():
        way.publish(0, first=True)
    floors.run(note=False)
    for version in range(1, rounds + 2):
        train(views, rate, random)
        for name, way in ways.items():
            way.publish(version, first=version == 1, clock=name)
        floors.run(note=version > 1)
    for way in ways.values():
        way.close()
    return {name: way.seen for name, way in ways.items()} | {
        "floors": floors.seconds,
        "floors_cpu": floors.cpu_s,
    }


def train(views: dict[str, torch.Tensor], rate: float, random: torch.Generator) -> None:
    """Change so many elements by more than a bfloat16 rounds away."""
    for view in views.values():
        flat = view.view(-1)
        count = round(len(flat) * rate)
        chosen = torch.randint(len(flat), (count,), generator=random)
        flat[chosen] = flat[chosen] * 1.02 + 1e-3


class Way:
    """One transport and codec on one rank."""

    def __init__(
        self, name: str, rank: RankInfo, plan: Plan, folder: Path, views: dict[str, torch.Tensor]
    ) -> None:
        from torch import distributed as dist

        transport, codec = WAYS[name]
        self.rank, self.plan, self.views = rank.rank, plan, views
        self.trains = rank.rank < TRAINERS
        made = [None]
        if rank.rank == 0:
            config = TransportCheckpoint.Config(directory=str(folder), bucket_mib=64)
            one = transport(config, codec())
            one.connect(one.listen(rank))
            made = [one]
        dist.broadcast_object_list(made)  # as a cluster sends it with each call
        self.transport: Any = made[0]
        self.base: BaseWeights | None = None
        self.seen: dict[str, Any] = {
            part: [] for part in ("all_s", "stage_s", "fetch_s", "cpu_s", "wire_bytes")
        }

    def publish(self, version: int, *, first: bool, clock: str = "") -> None:
        """As checkpoint ``transport`` does: stage, tell the replica, fetch; then serve it."""
        from torch import distributed as dist

        dist.barrier()
        with Peak() as peak:
            clocks, worked = [time.perf_counter()], time.process_time()
            receipts: list[Any] = [None] * (TRAINERS + 1)
            mine = None
            if self.trains:
                mine = self.transport.stage(
                    self.plan, self.rank, version, self.views, full=version == 0
                )
            clocks.append(time.perf_counter())
            if not self.transport.together:
                dist.all_gather_object(receipts, mine)
            found = receipts[:TRAINERS] if not self.transport.together else []
            clocks.append(time.perf_counter())
            fetched = None
            if not self.trains:
                fetched = self.transport.fetch(self.plan, self.rank, version, found, self.base)
            clocks.append(time.perf_counter())
            worked = time.process_time() - worked
        if fetched is not None:
            self.check(fetched.tensors, version)
            self.base = BaseWeights(version, fetched.tensors)
        if version == 0:
            self.seen["peak_bytes"] = peak.bytes
        if self.rank == 0 and not self.transport.together:
            dist.barrier()
            self.transport.discard(found)
        else:
            dist.barrier()
        if not first and clock:
            self.seen["all_s"].append(clocks[3] - clocks[0])
            self.seen["stage_s"].append(clocks[1] - clocks[0])
            self.seen["fetch_s"].append(clocks[3] - clocks[2])
            self.seen["cpu_s"].append(worked)
            self.seen["wire_bytes"].append(0 if fetched is None else fetched.nbytes)

    def check(self, tensors: Any, version: int) -> None:
        """Where no weight has changed yet the replica must hold just the trainers' values."""
        if version == 0:
            for name, tensor in tensors.items():
                wanted = canonical_of(self.plan, name).to(tensor.dtype)
                assert torch.equal(tensor.view(wanted.shape), wanted), name

    def close(self) -> None:
        from torch import distributed as dist

        dist.barrier()
        self.transport.close()
        dist.barrier()


def canonical_of(plan: Plan, name: str) -> torch.Tensor:
    from reshard import canonical

    return canonical(plan.source, name)


class Floors:
    """What nobody can be faster than: the same bytes by the plainest means, between barriers."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.rank, self.size, self.file = rank, size, folder / "plain.bin"
        self.seconds: dict[str, list[float]] = {}
        self.cpu_s: dict[str, list[float]] = {}
        mine = size // TRAINERS if rank < TRAINERS else size
        self.source = torch.ones(mine, dtype=torch.uint8)
        self.target = torch.ones(mine, dtype=torch.uint8)
        self.wide = torch.ones(mine // 2, dtype=torch.float32)
        self.narrow = torch.ones(mine // 2, dtype=torch.bfloat16)

    def run(self, *, note: bool) -> None:
        from torch import distributed as dist

        for name, part in (
            ("memcpy", lambda: self.alone(lambda: self.target.copy_(self.source))),
            ("cast", lambda: self.alone(lambda: self.narrow.copy_(self.wide))),
            ("file", lambda: self.alone(self.through_file)),
            ("send", self.send),
        ):
            dist.barrier()
            started, worked = time.perf_counter(), time.process_time()
            part()
            if note:
                self.seconds.setdefault(name, []).append(time.perf_counter() - started)
                self.cpu_s.setdefault(name, []).append(time.process_time() - worked)
            dist.barrier()

    def alone(self, part: Any) -> None:
        if self.rank == TRAINERS:
            part()

    def through_file(self) -> None:
        self.source.numpy().tofile(self.file)
        with self.file.open("rb") as file:
            file.readinto(self.target.numpy().data)  # type: ignore[attr-defined]

    def send(self) -> None:
        from torch import distributed as dist

        if self.rank < TRAINERS:
            dist.send(self.source, TRAINERS)
            return
        half = self.size // TRAINERS
        waits = [dist.irecv(self.target[r * half :][:half], r) for r in range(TRAINERS)]
        for wait in waits:
            wait.wait()


def figures(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """The replica's times; what the slower trainer needed; bytes and memory."""
    *trainers, replica = seen
    floors = {name: spread(values) for name, values in replica["floors"].items()}
    worked = {name: spread(values) for name, values in replica["floors_cpu"].items()}
    out: dict[str, Any] = {"floors_s": floors, "floors_cpu_s": worked}
    copied, copied_cpu = replica["floors"]["memcpy"], worked["memcpy"]["median"]
    for name in WAYS:
        one, total = replica[name], replica[name]["all_s"]
        staged = [max(both) for both in zip(*(t[name]["stage_s"] for t in trainers), strict=True)]
        both = [max(t) for t in zip(*(t[name]["cpu_s"] for t in trainers), strict=True)]
        cpu = [a + b for a, b in zip(both, one["cpu_s"], strict=True)]
        out[name] = {
            "cpu_s_of_slower_trainer_and_replica": spread(cpu),
            "share_of_memcpy_by_cpu": copied_cpu / statistics.median(cpu),
            "seconds": spread(total),
            "share_of_memcpy": spread([b / a for a, b in zip(total, copied, strict=True)]),
            "wire_bytes": statistics.median(one["wire_bytes"]),
            "profile_s": {"stage": spread(staged), "fetch": spread(one["fetch_s"])},
            "peak_extra_bytes": {
                "trainer": max(t[name]["peak_bytes"] for t in trainers),
                "replica": one["peak_bytes"],
            },
        }
    size = out["shm full"]["wire_bytes"]
    for name in WAYS:
        out[name]["gb_per_s"] = size / 1e9 / out[name]["seconds"]["median"]
        out[name]["share_of_full_bytes"] = out[name]["wire_bytes"] / size
    for way in ("shm", "disk"):
        whole, few = out[f"{way} full"], out[f"{way} delta"]
        cpu = "cpu_s_of_slower_trainer_and_replica"
        longer = few[cpu]["median"] - whole[cpu]["median"]
        few["pays_on_wires_below_gb_per_s"] = (size - few["wire_bytes"]) / 1e9 / max(longer, 1e-9)
    sent = replica["floors"]["send"]
    shares = [b / a for a, b in zip(replica["collective"]["all_s"], sent, strict=True)]
    out["collective"]["share_of_plain_send"] = spread(shares)
    return out


def targets(results: dict[str, Any]) -> list[dict[str, Any]]:
    out = []
    for dtype in DTYPES:
        for way in ("shm full", "disk full", "collective"):
            share = results[dtype][way]["share_of_memcpy"]["median"]
            out.append(target(f"{dtype}: {way}, share of a memcpy's speed", share, 0.5))
    narrow, wide = results["bfloat16"], results["float32"]
    fewer = narrow["shm full"]["wire_bytes"] / wide["shm full"]["wire_bytes"]
    out.append(target("bfloat16 on the wire, share of float32's bytes", fewer, 0.5, below=True))
    small = narrow["shm delta"]["share_of_full_bytes"]
    out.append(target("bfloat16: delta, share of full's bytes", small, 0.25, below=True))
    return out


def _bytes(plan: Plan, move: Any) -> int:
    return int(move.box.size) * (4 if plan.target.params[move.name].dtype == "float32" else 2)


if __name__ == "__main__":
    main(__doc__ or "", measure, options, quick={"rounds": 1, "steps": 2})
