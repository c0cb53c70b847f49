"""What comes of collecting: columns where the collector runs, summaries and handles elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rlframe.batching.batch import Batch
from rlframe.batching.columns import Schema
from rlframe.collecting.entry import GroupEntry, GroupSummary
from rlframe.interfaces.transfer import Handle, TransferEngine
from rlframe.recording.engine_figures import joined

__all__ = ["Collected", "Gathered"]


@dataclass
class Gathered:
    """Groups that were accepted, and why others were not, without any token.

    Their columns are stored beside: one block a column for all groups together.
    """

    groups: list[GroupSummary] = field(default_factory=list)
    """The accepted groups in the order of their rows."""
    refused: list[int] = field(default_factory=list)
    """Ids of groups that ``Algorithm.accept`` turned down."""
    failed: dict[int, str] = field(default_factory=dict)
    """Ids of groups without a scored episode, and the reason."""
    skipped_episodes: int = 0
    """Episodes that left their group because a reward failed."""
    late_episodes: int = 0
    """Episodes that a tail policy ended or left out."""
    fault: str = ""
    """What such a reward did, the last time; empty where none failed."""
    routed: dict[str, float] = field(default_factory=dict)
    """What the router of this collector has counted since the last answer."""
    router: dict[str, float] = field(default_factory=dict)
    """How things stand there."""


@dataclass
class Collected:
    """The same as the controller has it: accepted groups with their rows as an index."""

    accepted: list[GroupEntry] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    skipped_episodes: int = 0
    late_episodes: int = 0
    fault: str = ""
    routed: dict[str, float] = field(default_factory=dict)
    router: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        gathered: Gathered,
        blocks: Mapping[str, Handle],
        schema: Schema,
        transfer: TransferEngine,
    ) -> Collected:
        """Cut the blocks into the groups' rows."""
        out = cls(
            refused=gathered.refused,
            failed=gathered.failed,
            skipped_episodes=gathered.skipped_episodes,
            late_episodes=gathered.late_episodes,
            fault=gathered.fault,
            routed=gathered.routed,
            router=gathered.router,
        )
        if gathered.groups:
            sizes = [group.rows for group in gathered.groups]
            rows = np.arange(sum(sizes), dtype=np.int64)
            whole = Batch({}, len(rows), schema=schema, transfer=transfer)
            parts = whole.add_handles([(blocks, rows)]).split(sizes)
            out.accepted = [g.at(b) for g, b in zip(gathered.groups, parts, strict=True)]
        return out

    @classmethod
    def merge(cls, parts: Iterable[Collected]) -> Collected:
        """What several collectors found, by group id."""
        out, parts = cls(), list(parts)
        out.routed, out.router = joined(p.routed for p in parts), joined(p.router for p in parts)
        for part in parts:
            out.accepted += part.accepted
            out.refused += part.refused
            out.failed |= part.failed
            out.skipped_episodes += part.skipped_episodes
            out.late_episodes += part.late_episodes
            out.fault = part.fault or out.fault
        out.accepted.sort(key=lambda entry: entry.group_id)
        return out
