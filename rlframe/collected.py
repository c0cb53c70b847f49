"""What comes of collecting: columns where the collector runs, summaries and handles elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rlframe.batch import Batch
from rlframe.columns import Schema
from rlframe.entry import GroupEntry, GroupSummary
from rlframe.interfaces.transfer import Handle, TransferEngine
from rlframe.packed import Packed

__all__ = ["Collected", "Gathered"]


@dataclass
class Collected:
    """Groups that were accepted, and why others were not."""

    accepted: list[GroupEntry] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    """Ids of groups that ``Algorithm.accept`` turned down."""
    failed: dict[int, str] = field(default_factory=dict)
    """Ids of groups without a scored episode, and the reason."""
    skipped_episodes: int = 0
    """Episodes that left their group because a reward failed."""

    @classmethod
    def merge(cls, parts: Iterable[Collected]) -> Collected:
        """What several collectors found, by group id."""
        out = cls()
        for part in parts:
            out.accepted += part.accepted
            out.refused += part.refused
            out.failed |= part.failed
            out.skipped_episodes += part.skipped_episodes
        out.accepted.sort(key=lambda entry: entry.group_id)
        return out


@dataclass
class Gathered:
    """The same before the columns are stored: one block a column for all groups together."""

    columns: Mapping[str, Packed] = field(default_factory=dict)
    """Empty where no group was accepted."""
    groups: list[GroupSummary] = field(default_factory=list)
    """The accepted groups in the order of their rows."""
    refused: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    skipped_episodes: int = 0

    def at(self, blocks: Mapping[str, Handle], schema: Schema, engine: TransferEngine) -> Collected:
        """What the controller gets, once ``columns`` are stored as ``blocks``."""
        out = Collected([], self.refused, self.failed, self.skipped_episodes)
        if self.groups:
            sizes = [group.rows for group in self.groups]
            rows = np.arange(sum(sizes), dtype=np.int64)
            whole = Batch({}, len(rows), schema=schema, transfer=engine)
            parts = whole.add_handles([(blocks, rows)]).split(sizes)
            out.accepted = [g.at(b) for g, b in zip(self.groups, parts, strict=True)]
        return out

    def stored(self, schema: Schema, engine: TransferEngine) -> Collected:
        """Store the columns here."""
        return self.at(engine.put(self.columns) if self.groups else {}, schema, engine)
