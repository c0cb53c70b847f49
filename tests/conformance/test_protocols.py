"""ProtocolKit over every registered protocol, and over rules with one mistake each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlframe.calling.protocol import DP_PROTO, THREE_D_ALL_MICRO_DP, THREE_D_PROTO, Mesh, Protocol
from rlframe.errors import PluginError
from rlframe.host.host import PluginHost
from rlframe.host.resolve import resolve
from rlframe.testing.protocol_kit import ProtocolKit

NAMES = sorted(PluginHost().load().components("protocol"))


def _kit(name: str) -> type[ProtocolKit]:
    return type(f"Test_{name}", (ProtocolKit,), {"name": name, "__module__": __name__})


globals().update({f"Test_{name}": _kit(name) for name in NAMES})


def test_the_eight_are_there():
    assert len(NAMES) == 8


WRONG = {
    "one chunk is never given": replace(THREE_D_PROTO, chunks=lambda mesh: mesh.dp + 1),
    "a chunk is collected twice": replace(
        THREE_D_PROTO, collected=lambda mesh: tuple(range(mesh.size))
    ),
    "in the order of ranks, not of replicas": replace(
        DP_PROTO, collected=lambda mesh: tuple(reversed(range(mesh.size)))
    ),
    "from a rank that is not called": replace(
        DP_PROTO, chunk_of=lambda mesh, rank: rank if rank else None
    ),
    "by global rank where chunks go by replica": replace(
        THREE_D_ALL_MICRO_DP, chunk_of=lambda mesh, rank: rank % (mesh.dp * mesh.dg)
    ),
    "collected from nobody": replace(DP_PROTO, collected=lambda mesh: ()),
}


@pytest.mark.parametrize("rule", WRONG.values(), ids=WRONG)
def test_the_kit_notices_a_mistake(rule):
    class Wrong(ProtocolKit):
        pass

    Wrong.rule = rule
    with pytest.raises((AssertionError, KeyError, TypeError, IndexError)):
        Wrong().test_each_chunk_is_collected_from_one_rank_in_order()


def test_a_stranger_may_add_one():
    """Every second replica answers for itself and the one after it: pairs of replicas."""

    def pairs(mesh: Mesh) -> int:
        return -(-mesh.dp // 2)

    def first(mesh: Mesh) -> tuple[int, ...]:
        return tuple(mesh.rank_of(2 * n, 0, 0) for n in range(pairs(mesh)))

    mine = Protocol("PAIRS", pairs, lambda mesh, r: mesh.dp_rank(r) // 2, first, "concat")

    class Pairs(ProtocolKit):
        rule = mine

    kit = Pairs()
    kit.test_each_chunk_is_collected_from_one_rank_in_order()
    kit.test_rows_are_shared_out(23, 1)
    kit.test_what_comes_back_lies_where_it_came_from(23, 1)


def test_what_is_no_protocol_is_told_so():
    with pytest.raises(PluginError, match="not a rlframe.calling.protocol.Protocol"):
        resolve(PluginHost().load(), "protocol", "rlframe.calling.protocol:Mesh")
