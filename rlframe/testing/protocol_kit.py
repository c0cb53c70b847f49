"""What every transfer protocol must do. Subclass :class:`ProtocolKit` and name yours.

Example::

    class TestMine(ProtocolKit):
        name = "ACME_PROTO"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from rlframe.calling.protocol import Mesh, Protocol
from rlframe.host.host import PluginHost
from rlframe.host.resolve import resolve
from rlframe.testing.protocol_laws import (
    check_echo,
    check_rows,
    check_rule,
    ragged_batch,
    small_meshes,
)

__all__ = ["ProtocolKit"]

_SIZES = ((0, 1), (1, 1), (7, 3), (23, 1))
"""Rows and blocks of the batches that are sent: none, one, fewer than ranks, indivisible."""


class ProtocolKit:
    """Tests of one protocol over small meshes and uneven batches."""

    name: ClassVar[str] = ""
    """The component's name."""

    @property
    def rule(self) -> Protocol:
        """The protocol."""
        assert self.name, "set ProtocolKit.name to the name of your protocol"
        found = resolve(PluginHost().load(), "protocol", self.name).value
        assert isinstance(found, Protocol)
        return found

    def meshes(self) -> Iterator[Mesh]:
        """The meshes that it is tried on."""
        return small_meshes()

    # --- what is checked ----------------------------------------------------------------------

    def test_it_has_the_name_of_its_component(self) -> None:
        """So that a message names what a user can look up."""
        assert self.rule.name == self.name

    def test_each_chunk_is_collected_from_one_rank_in_order(self) -> None:
        """In the order of replicas, not of global ranks."""
        rule = self.rule
        for mesh in self.meshes():
            check_rule(rule, mesh)

    @pytest.mark.parametrize(("rows", "blocks"), _SIZES)
    def test_rows_are_shared_out(self, rows: int, blocks: int) -> None:
        """Each row to one chunk, alike on a replica; the caller's batch is as before."""
        rule = self._of_batches()
        batch = ragged_batch(rows, blocks=blocks)
        batch.scalars = {"kl_coef": 0.5}
        for mesh in self.meshes():
            check_rows(rule, mesh, batch)

    @pytest.mark.parametrize(("rows", "blocks"), _SIZES)
    def test_what_comes_back_lies_where_it_came_from(self, rows: int, blocks: int) -> None:
        """An echo of the batch is the batch; no payload passes the controller."""
        rule = self._of_batches()
        batch = ragged_batch(rows, blocks=blocks)
        for mesh in self.meshes():
            check_echo(rule, mesh, batch)

    # --- inside -------------------------------------------------------------------------------

    def _of_batches(self) -> Protocol:
        rule = self.rule
        if rule.cut == "values":
            pytest.skip(f"{rule.name} sends one value a rank, no batch")
        return rule
