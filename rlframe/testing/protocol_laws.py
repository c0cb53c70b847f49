"""Laws that every transfer protocol keeps, on any mesh and batch: functions that assert.

``check_rule`` looks at the rule alone; ``check_rows`` at who gets which rows; ``check_echo`` sends
a batch to workers that return what they read, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from rlframe.batching.batch import Batch
from rlframe.batching.columns import Column, make_schema
from rlframe.batching.packed import Packed
from rlframe.calling.fan_out import Share, collect, distribute
from rlframe.calling.protocol import Mesh, Protocol
from rlframe.interfaces.transfer import LocalTransfer

__all__ = [
    "CountingTransfer",
    "check_echo",
    "check_rows",
    "check_rule",
    "fan_out",
    "ragged_batch",
    "small_meshes",
]

SCHEMA = make_schema(
    [
        Column("echo_ids", "BR", "int64", "echo", "the response tokens that a worker read"),
        Column("echo_rewards", "B", "float32", "echo", "the rewards that a worker read"),
    ]
)


class CountingTransfer(LocalTransfer):
    """Counts the bytes that are pulled, and the rows by column."""

    def __init__(self) -> None:
        super().__init__("counting")
        self.bytes_pulled = 0

    def get(self, pieces: Sequence[tuple[Any, Any]]) -> list[Packed]:
        """See :class:`LocalTransfer`."""
        found = super().get(pieces)
        self.bytes_pulled += sum(packed.nbytes for packed in found)
        return found


def small_meshes(most: int = 4) -> Iterator[Mesh]:
    """Every mesh with sizes up to ``most`` and at most 16 ranks, with every generation mesh."""
    sizes = range(1, most + 1)
    for dp, pp, tp in product(sizes, repeat=3):
        if dp * pp * tp > 16:
            continue
        for pg, tg in product(sizes, repeat=2):
            if pp % pg == 0 and tp % tg == 0:
                yield Mesh(dp, pp, tp, pg, tg)


def ragged_batch(rows: int, seed: int = 0, blocks: int = 1) -> Batch:
    """A batch of uneven rows, empty responses among them, in one or several blocks."""
    rng = np.random.default_rng((rows, seed))
    lengths = rng.integers(0, 9, rows)
    columns = {
        "prompt_ids": Packed.from_rows([rng.integers(1, 99, n) for n in lengths[::-1]], "int64"),
        "response_ids": Packed.from_rows([rng.integers(1, 99, n) for n in lengths], "int64"),
        "group_ids": Packed(rng.integers(0, rows // 3 + 1, rows)),
        "rewards": Packed(np.arange(rows, dtype=np.float32)),
    }
    whole = Batch.from_columns(columns, schema=SCHEMA, transfer=CountingTransfer())
    if blocks == 1:
        return whole
    ends = np.linspace(0, rows, blocks + 1).astype(np.int64)
    parts = []
    for start, end in zip(ends[:-1], ends[1:], strict=True):
        mine = {name: packed.take(np.arange(start, end)) for name, packed in columns.items()}
        parts.append(Batch.from_columns(mine, schema=SCHEMA, transfer=whole.transfer))
    return Batch.concat(parts)


def fan_out(rule: Protocol, mesh: Mesh, args: tuple[Any, ...], work: Callable[..., Any]) -> Any:
    """A whole call: ``work`` on every rank that is called, then what the protocol collects."""
    shares = distribute(rule, mesh, args)
    results = {rank: work(*share.args) for rank, share in enumerate(shares) if share is not None}
    return collect(rule, mesh, shares, {rank: results[rank] for rank in rule.collected(mesh)})


def check_rule(rule: Protocol, mesh: Mesh) -> None:
    """Every chunk has a rank; each collected rank is called and stands for one chunk, in order."""
    count = rule.chunks(mesh)
    chunks = [rule.chunk_of(mesh, rank) for rank in range(mesh.size)]
    called = [chunk for chunk in chunks if chunk is not None]
    assert set(called) == set(range(max(count, 1))), f"{rule.name}: chunks without a rank"
    collected = rule.collected(mesh)
    assert collected, f"{rule.name} collects from nobody"
    assert len(set(collected)) == len(collected), f"{rule.name} collects a rank twice"
    found = [chunks[rank] for rank in collected]
    assert None not in found, f"{rule.name} collects from a rank that is not called"
    replicas = [mesh.dp_rank(rank) for rank in collected]
    assert replicas == sorted(replicas), f"{rule.name}: order of replicas"
    if count:
        assert found == list(range(count)), f"{rule.name}: each chunk once, in order"


def check_rows(rule: Protocol, mesh: Mesh, batch: Batch) -> None:
    """Chunks share the rows out, none twice; ranks of one chunk get the same; groups stay whole."""
    before = _contents(batch)
    shares = distribute(rule, mesh, (batch, "option"))
    assert len(shares) == mesh.size
    by_chunk: dict[int, Share] = {}
    for rank, share in enumerate(shares):
        chunk = rule.chunk_of(mesh, rank)
        assert (share is None) is (chunk is None)
        if share is None or chunk is None:
            continue
        assert by_chunk.setdefault(chunk, share) is share, "one share a chunk"
        assert share.args[1] == "option"
    if rule.chunks(mesh):
        rows = [share.rows for share in by_chunk.values() if share.rows is not None]
        assert sorted(np.concatenate(rows).tolist()) == list(range(len(batch)))
        for share in by_chunk.values():
            assert share.rows is not None
            assert len(share.args[0]) == len(share.rows)
            assert share.args[0].scalars == batch.scalars
        if rule.together is not None and len(batch):
            ids = np.asarray(batch[rule.together])
            homes = [set(ids[part].tolist()) for part in rows]
            assert sum(map(len, homes)) == len(set(ids.tolist())), "a group lies in two chunks"
    assert _contents(batch) == before


def _contents(batch: Batch) -> dict[str, bytes]:
    return {name: batch.packed(name).values.tobytes() for name in batch.columns}


def check_echo(rule: Protocol, mesh: Mesh, batch: Batch) -> None:
    """What workers return of each row lies at that row; the controller pulls nothing.

    All ranks together pull the batch once for each rank of a chunk.
    """
    transfer = batch.transfer
    assert isinstance(transfer, CountingTransfer)
    whole = sum(batch.packed(name).nbytes for name in ("prompt_ids", "response_ids"))
    transfer.bytes_pulled = 0
    worked = 0

    def work(chunk: Batch) -> Any:
        nonlocal worked
        at = transfer.bytes_pulled
        ids, rewards = chunk.packed("response_ids"), chunk.packed("rewards")
        worked += transfer.bytes_pulled - at
        if rule.combine != "concat":
            return rewards.values
        return transfer.put({"echo_ids": ids, "echo_rewards": rewards})

    back = fan_out(rule, mesh, (batch,), work)
    assert transfer.bytes_pulled == worked, "the controller pulled payload"
    ranks = mesh.size / max(rule.chunks(mesh), 1)
    assert worked <= whole * ranks, "more was pulled than each rank's own rows"
    if rule.combine == "concat":
        got = batch.add_handles(back)
        for name, source in (("echo_ids", "response_ids"), ("echo_rewards", "rewards")):
            assert np.array_equal(got.packed(name).values, batch.packed(source).values)
