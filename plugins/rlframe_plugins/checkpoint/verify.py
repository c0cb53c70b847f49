"""Whether replicas compute with the trainer's weights, parameter by parameter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlframe.errors import SyncError
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.weights.layout import Box, Layout, Piece, Plan
from rlframe_plugins.resharders.planner import without

if TYPE_CHECKING:
    from rlframe.weights.checksums import Query

__all__ = ["Verifier"]

_Key = tuple[str, Box]


@dataclass
class _Asked:
    """What the ranks of one side are asked for, and which target box each answer is of."""

    queries: list[list[Query]] = field(default_factory=list)
    keys: list[list[_Key]] = field(default_factory=list)


class Verifier:
    """Compares checksums of every box that a target rank holds with the trainer's elements there.

    ``first`` is the plan's rank of the first replica: 0 where both sides share ranks.
    """

    def __init__(
        self, plan: Plan, sources: WorkerGroup, targets: WorkerGroup, first: int = 0
    ) -> None:
        self._sources, self._targets = sources, targets
        held = plan.target.ranks[first : first + targets.mesh.size]
        self._theirs = _Asked()
        for pieces in held:
            kept = [piece for piece in pieces if piece.box.size]
            self._theirs.queries.append([_query(plan.target, p, p.box) for p in kept])
            self._theirs.keys.append([(p.name, p.box) for p in kept])
        wanted = dict.fromkeys(key for keys in self._theirs.keys for key in keys)
        self._ours = _ask_owners(plan, list(wanted), sources.mesh.size)

    def check(self, version: int) -> None:
        """Raise SyncError with the parameter that differs and the rank that has it."""
        answers = self._sources.call("checksums", self._ours.queries)
        expected: dict[_Key, int] = {}
        for found, keys in zip(answers.result(), self._ours.keys, strict=True):
            for number, key in zip(found, keys, strict=True):
                expected[key] = (expected.get(key, 0) + number) % 2**64
        theirs = self._targets.call("checksums", self._theirs.queries).result()
        for rank, (found, keys) in enumerate(zip(theirs, self._theirs.keys, strict=True)):
            if found is None:  # it is away, and gets the version when it joins
                continue
            wrong = [key for n, key in zip(found, keys, strict=True) if n != expected[key]]
            if wrong:
                raise SyncError(_text(version, rank, wrong, len(keys)))


def _ask_owners(plan: Plan, wanted: list[_Key], world: int) -> _Asked:
    """Disjoint parts that cover each wanted box, asked of the first rank that holds them."""
    asked = _Asked([[] for _ in range(world)], [[] for _ in range(world)])
    boxes: dict[str, list[Box]] = {}
    for name, box in wanted:
        boxes.setdefault(name, []).append(box)
    seen: dict[str, list[Box]] = {}
    for rank, pieces in enumerate(plan.source.ranks[:world]):
        for piece in pieces:
            before = seen.setdefault(piece.name, [])
            if not piece.box.size or piece.box in before:
                continue
            parts = [piece.box]
            for box in before:
                parts = [rest for part in parts for rest in without(part, box)]
            before.append(piece.box)
            for box in boxes.get(piece.name, ()):
                common = [c for part in parts if (c := part.intersect(box)) is not None]
                asked.queries[rank] += [_query(plan.target, piece, c) for c in common]
                asked.keys[rank] += [(piece.name, box)] * len(common)
    return asked


def _query(layout: Layout, piece: Piece, box: Box) -> Query:
    from rlframe.weights.checksums import Query

    info = layout.params[piece.name]
    return Query(piece, box, info.shape, info.dtype)


def _text(version: int, rank: int, wrong: list[_Key], of: int) -> str:
    name, box = wrong[0]
    place = ", ".join(f"{o}:{o + n}" for o, n in zip(box.offset, box.shape, strict=True))
    more = f" and {len(wrong) - 1} more of {of}" if len(wrong) > 1 else ""
    return (
        f"version {version}: rank {rank} of the rollout does not compute with the trainer's "
        f"weights: '{name}'[{place}] differs{more}"
    )
