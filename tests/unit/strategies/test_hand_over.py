"""A policy's weights in a rollout engine of the same ranks: buffers, and what is given back."""

from __future__ import annotations

import pytest
import torch

from rlframe.testing.dist import join, run_ranks
from rlframe.weights.checksums import Query, checksum, checksums
from rlframe.weights.layout import Box, Layout, LocalView, Move, ParamInfo, Piece, Plan
from rlframe.weights.storage import allocate, dtypes, local_view, moved, named_views
from rlframe_strategies.fsdp import dim0_layout
from rlframe_strategies.hand_over import HandOver

PARAMS = {"a": ParamInfo((8, 6), "float32"), "b": ParamInfo((6,), "float32")}


def value(step: int, name: str) -> torch.Tensor:
    shape = PARAMS[name].shape
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) + 100 * step


class FakeStrategy:
    """Shards of what :func:`value` says."""

    def __init__(self, rank, layout):
        self.rank, self._layout = rank, layout
        pieces = layout.ranks[rank.rank]
        self._views = allocate(pieces, dtypes(PARAMS), torch.device("cpu"))

    def train(self, step):
        for piece in self._layout.ranks[self.rank.rank]:
            if piece.box.size:
                whole = value(step, piece.name)
                local_view(piece, self._views[piece.view.key])[:] = whole[piece.box.slices()]

    def views(self):
        return self._views


class FakePeer:
    """Remembers what a rollout engine was told."""

    def __init__(self):
        self.calls, self.tensors = [], None

    def load(self, version, tensors):
        self.calls.append(("load", version))
        self.tensors = tensors

    def sleep(self, level):
        self.calls.append(("sleep", level))
        if level == 2:
            self.tensors = None

    def wake(self):
        self.calls.append(("wake",))


def whole_plan(world):
    source, target = dim0_layout(PARAMS, world), Layout.full(PARAMS, world)
    moves = [
        Move(p.name, p.box, owner, rank)
        for rank in range(world)
        for owner, pieces in enumerate(source.ranks)
        for p in pieces
        if owner != rank and p.box.size
    ]
    return Plan(source, target, tuple(moves))


def lives(rank, after):
    join(rank)
    plan = whole_plan(rank.world)
    strategy, peer = FakeStrategy(rank, plan.source), FakePeer()
    hand = HandOver(peer, strategy, plan, copy=False, bucket_mib=1, after=after)
    hand.ready()
    hand.rest()
    assert peer.calls == []
    sizes = []
    for step in (1, 2):
        strategy.train(step)
        done = hand.publish(step)
        sizes.append(done.extra_bytes)
        for name in PARAMS:
            assert torch.equal(peer.tensors[name], value(step, name))
        strategy.train(step + 50)  # training goes on in its own buffer
        assert torch.equal(peer.tensors["a"], value(step, "a"))
        hand.rest()
        hand.rest()
    held = hand._mover.extra_bytes
    hand.ready()
    hand.ready()
    return peer.calls, sizes, held, {n: t.clone() for n, t in peer.tensors.items()}


LOADS = [("load", 1), ("load", 2)]
REST = {"keep": [], "cache": [("sleep", 1)], "offload": [("sleep", 2)], "release": [("sleep", 2)]}


@pytest.mark.dist
@pytest.mark.parametrize("after", REST)
def test_what_is_given_back_after_generation_comes_back_before_it(after):
    gen = sum(4 * torch.Size(p.shape).numel() for p in PARAMS.values())
    for calls, sizes, held, tensors in run_ranks(lives, 2, after):
        rest, wake = REST[after], [("wake",)] if REST[after] else []
        again = [("load", 2)] if after in ("offload", "release") else []
        between = rest + LOADS[1:] + wake
        assert calls == LOADS[:1] + between + rest + again + wake
        assert sizes[0] == sizes[1] >= gen
        assert held == (gen if after in ("keep", "cache") else 0)
        step = 52 if after == "release" else 2
        assert all(torch.equal(tensors[name], value(step, name)) for name in PARAMS)


def test_equal_layouts_share_one_storage_until_a_copy_is_asked_for():
    class Rank:
        rank, world, device = 0, 1, "cpu"

    plan = Plan(Layout.full(PARAMS), Layout.full(PARAMS), ())
    strategy, peer = FakeStrategy(Rank, plan.source), FakePeer()
    strategy.train(1)
    shared = HandOver(peer, strategy, plan, copy=False, bucket_mib=1, after="release")
    assert shared.publish(1).extra_bytes == 0
    for name, tensor in peer.tensors.items():
        assert tensor.data_ptr() == strategy.views()[name].data_ptr()
    shared.rest()
    assert peer.tensors is None
    shared.ready()
    assert torch.equal(peer.tensors["a"], value(1, "a"))
    twin = HandOver(peer, strategy, plan, copy=True, bucket_mib=1, after="keep")
    assert twin.publish(2).extra_bytes >= 4 * 54
    assert peer.tensors["a"].data_ptr() != strategy.views()["a"].data_ptr()


def test_a_fused_buffer_is_shared_by_the_names_inside():
    """Under other keys than the parameters'; two boxes of one parameter cannot be one tensor."""
    box = {"a": Box((0, 0), (8, 6)), "b": Box((0,), (6,))}
    pieces = [
        Piece("a", box["a"], LocalView("fused", 0, (6, 1))),
        Piece("b", box["b"], LocalView("fused", 48, (1,))),
    ]
    fused = torch.arange(54.0)
    found = named_views(pieces, {"fused": fused})
    assert torch.equal(found["b"], torch.arange(48.0, 54.0))
    assert found["a"].data_ptr() == fused.data_ptr()
    halves = [
        Piece("a", Box((row, 0), (4, 6)), LocalView("fused", 6 * row, (6, 1))) for row in (0, 4)
    ]
    assert named_views(halves, {"fused": fused}) is None


def test_moved_tensors_keep_their_arena():
    pieces = Layout.full(PARAMS).ranks[0]
    tensors = allocate(pieces, dtypes(PARAMS), torch.device("cpu"))
    tensors["a"] += 3
    there = moved(tensors, torch.device("meta"))
    assert {t.device.type for t in there.values()} == {"meta"}
    assert there["b"].untyped_storage()._cdata == there["a"].untyped_storage()._cdata
    assert there["b"].storage_offset() == 48


# --- checksums ----------------------------------------------------------------------------------


def query(box, info=PARAMS["a"]):
    whole = Piece("a", Box((0, 0), info.shape), LocalView("a", 0, (6, 1)))
    return Query(whole, box, info.shape, info.dtype)


def test_checksums_of_parts_add_up_to_that_of_the_whole():
    tensors = {"a": torch.randn(8, 6)}
    boxes = [Box((0, 0), (3, 6)), Box((3, 0), (5, 2)), Box((3, 2), (5, 4))]
    parts = checksums([query(box) for box in boxes], tensors)
    (whole,) = checksums([query(Box((0, 0), (8, 6)))], tensors, named=True)
    assert sum(parts) % 2**64 == whole


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_checksums_see_a_bit_a_swap_and_a_shift(kind):
    base = torch.arange(48).reshape(8, 6).to(kind)
    box = Box((0, 0), (8, 6))
    seen = {checksum(base, box, (8, 6))}
    changed = base.clone()
    changed.view(-1)[5:7] = base.view(-1)[5:7].flip(0)
    seen.add(checksum(changed, box, (8, 6)))
    seen.add(checksum(base.roll(1, 0), box, (8, 6)))
    seen.add(checksum(base.t().contiguous().reshape(8, 6), box, (8, 6)))
    negative = base.clone()
    negative[0, 0] = -base[0, 1]
    seen.add(checksum(negative, box, (8, 6)))
    assert len(seen) == 5


def test_a_large_tensor_is_summed_in_chunks(monkeypatch):
    from rlframe.weights import checksums as module

    tensor = torch.randn(50, 7)
    box = Box((0, 0), (50, 7))
    one = checksum(tensor, box, (50, 7))
    monkeypatch.setattr(module, "_CHUNK", 20)
    assert checksum(tensor, box, (50, 7)) == one
