"""Eight gloo ranks really move weights: bytes and storage equal the formulas, bits the model."""

from __future__ import annotations

import pytest
import torch

from rlframe.calling.protocol import Mesh
from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.dist import join, run_ranks
from rlframe.weights.layout import Layout, ParamInfo, Plan
from rlframe.weights.moving import Mover
from rlframe.weights.sharding import Cut, grid_layout
from rlframe.weights.storage import allocate, dtypes, local_view
from rlframe_plugins.resharders.measure import held_bytes, outside_bytes
from rlframe_plugins.resharders.report import transitions, whole_bytes
from rlframe_plugins.resharders.vanilla import Vanilla
from rlframe_plugins.resharders.zero_redundancy import ZeroRedundancy

pytestmark = [pytest.mark.dist, pytest.mark.timeout(180)]

LAYERS = 4
PARAMS, CUTS = {}, {}
for layer in range(LAYERS):
    PARAMS[f"{layer}.up"] = ParamInfo((16, 6), "float32")
    CUTS[f"{layer}.up"] = Cut(axis=0, layer=layer)
    PARAMS[f"{layer}.down"] = ParamInfo((6, 16), "bfloat16")
    CUTS[f"{layer}.down"] = Cut(axis=1, layer=layer)
    PARAMS[f"{layer}.norm"] = ParamInfo((6,), "float32")
    CUTS[f"{layer}.norm"] = Cut(layer=layer)

MESHES = [
    Mesh(2, 1, 4, 1, 2),
    Mesh(2, 2, 2, 1, 2),
    Mesh(1, 2, 4, 1, 2),
    Mesh(1, 4, 2, 2, 1),
    Mesh(2, 1, 4, 1, 4),
]


def canonical(name: str) -> torch.Tensor:
    info = PARAMS[name]
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randn(info.shape, generator=generator).to(getattr(torch, info.dtype))


def filled(layout: Layout, rank: int) -> dict[str, torch.Tensor]:
    buffers = allocate(layout.ranks[rank], dtypes(PARAMS), torch.device("cpu"))
    for piece in layout.ranks[rank]:
        view = local_view(piece, buffers[piece.view.key])
        view[:] = canonical(piece.name)[piece.box.slices()]
    return buffers


def check(layout: Layout, rank: int, buffers: dict[str, torch.Tensor]) -> None:
    for piece in layout.ranks[rank]:
        view = local_view(piece, buffers[piece.view.key])
        assert torch.equal(view, canonical(piece.name)[piece.box.slices()]), piece


class Counted:
    """Links whose arrivals from others are counted, by what torch really moved."""

    def __init__(self, links, members, rank, seen):
        self.links, self.members, self.rank, self.seen = links, members, rank, seen

    def all_gather(self, whole, mine):
        self.links.all_gather(whole, mine)
        self.seen["wire"] += whole.numel() - mine.numel()
        self.seen["calls"] += 1

    def all_to_all(self, incoming, outgoing, receive, send):
        self.links.all_to_all(incoming, outgoing, receive, send)
        self.seen["wire"] += sum(receive)
        self.seen["calls"] += 1


def moves(rank: RankInfo, plan: Plan) -> dict[str, int]:
    join(rank)
    seen = {"wire": 0, "calls": 0}
    mover = Mover(plan, rank.rank, torch.device("cpu"))
    if mover._links is not None:
        mover._links = Counted(mover._links, mover._members, rank.rank, seen)
    trained = filled(plan.source, rank.rank)
    before = {name: t.clone() for name, t in trained.items()}
    made = mover.run(trained)
    check(plan.target, rank.rank, made)
    back = Mover(way_back(plan), rank.rank, torch.device("cpu")).run(made)
    assert all(torch.equal(back[name], before[name]) for name in before)
    stored = sum(t.untyped_storage().nbytes() for t in arenas(made).values())
    return {**seen, "received": mover.received, "stored": stored, "extra": mover.extra_bytes}


def arenas(tensors: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
    return {t.untyped_storage().data_ptr(): t for t in tensors.values()}


def way_back(plan: Plan) -> Plan:
    return ZeroRedundancy(ZeroRedundancy.Config()).plan(plan.target, plan.source)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_measured_bytes_and_storage_equal_the_formulas(mesh):
    trained = grid_layout(PARAMS, CUTS, mesh)
    reports = {one.name: one for one in transitions(PARAMS, CUTS, mesh)}
    for name, resharder, grouping in (
        ("zero-redundancy", ZeroRedundancy(ZeroRedundancy.Config()), "strided"),
        ("vanilla", Vanilla(), "adjacent"),
    ):
        target = grid_layout(PARAMS, CUTS, mesh, grouping)
        plan = resharder.plan(trained, target)
        if plan.shared:
            assert mesh.dg == 1
            continue
        received, peak, redundant = reports[name].expected
        found = run_ranks(moves, 8, plan)
        for rank, one in enumerate(found):
            assert one["received"] == received
            assert one["wire"] >= received
            assert one["stored"] == one["extra"] == held_bytes(target, rank)
        assert max(outside_bytes(trained, target, r) for r in range(8)) == redundant
        if name == "zero-redundancy":
            assert {one["stored"] for one in found} == {peak}
            assert {one["calls"] for one in found} == {1}, "one exchange a micro-DP group"


def test_all_gather_engines_receive_everything():
    from rlframe.weights.sharding import flat_layout
    from rlframe_plugins.resharders.gather_all import GatherAll

    mesh = Mesh(2, 1, 4, 1, 2)
    plan = GatherAll().plan(flat_layout(PARAMS, 8), Layout.full(PARAMS, 8))
    report = next(one for one in transitions(PARAMS, CUTS, mesh) if one.name == "gather-all")
    total = whole_bytes(PARAMS)
    found = run_ranks(moves, 8, plan)
    assert sum(one["received"] for one in found) == 8 * report.expected[0] == 7 * total
    assert {one["stored"] for one in found} == {total}
