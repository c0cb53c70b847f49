"""What the controller knows of a collected group: small summaries, and where its rows are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlframe.requests import Episode, FinishReason, Group

if TYPE_CHECKING:
    from rlframe.batching.batch import Batch
    from rlframe.interfaces.transfer import TransferEngine

__all__ = ["EpisodeSummary", "GroupEntry", "GroupSummary"]


@dataclass(frozen=True)
class EpisodeSummary:
    """One episode without its tokens."""

    episode_id: int
    train: bool
    reward: float | None
    reward_parts: Mapping[str, float]
    length: int
    """Tokens that the policy sampled."""
    finish_reason: FinishReason
    rows: int
    """Rows of the batch, one a segment."""
    versions: tuple[int, int]
    """The oldest and the newest weights that sampled a token; (-1, -1) where none was sampled."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Counts and seconds that the environment gave."""

    @classmethod
    def of(cls, episode: Episode) -> EpisodeSummary:
        """Summarise an episode."""
        seen = [v for s in episode.segments for v in s.versions if v >= 0] or [-1]
        return cls(
            episode_id=episode.request.episode_id,
            train=episode.request.train,
            reward=episode.reward,
            reward_parts=dict(episode.reward_parts),
            length=episode.length,
            finish_reason=episode.finish_reason,
            rows=len(episode.segments),
            versions=(min(seen), max(seen)),
            figures=dict(episode.figures),
        )


@dataclass(frozen=True)
class GroupSummary:
    """All episodes of one draw of a prompt, by episode id."""

    group_id: int
    source: str
    """Where the prompt stands in the data, "file:line"."""
    episodes: tuple[EpisodeSummary, ...]

    @classmethod
    def of(cls, group: Group) -> GroupSummary:
        """Summarise a group."""
        episodes = sorted(group.episodes, key=lambda e: e.request.episode_id)
        made = tuple(EpisodeSummary.of(e) for e in episodes)
        return cls(group.row.group_id, group.row.source, made)

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return sum(e.rows for e in self.episodes)

    @property
    def rewards(self) -> list[float]:
        """Outcome rewards of the trained episodes that have one."""
        return [e.reward for e in self.episodes if e.train and e.reward is not None]

    @property
    def oldest_version(self) -> int:
        """The oldest weights that sampled a token of the group; -1 where none was sampled."""
        return min((e.versions[0] for e in self.episodes if e.versions[0] >= 0), default=-1)

    def by_row(self) -> Iterator[EpisodeSummary]:
        """The episode of each row, in order."""
        for episode in self.episodes:
            yield from (episode for _ in range(episode.rows))

    def at(self, batch: Batch) -> GroupEntry:
        """The entry of this group, whose rows are those of ``batch``, in order."""
        assert len(batch) == self.rows, f"{len(batch)} rows for a group of {self.rows}"
        return GroupEntry(self.group_id, self.source, self.episodes, batch)


@dataclass(frozen=True)
class GroupEntry(GroupSummary):
    """A group that waits to be learned from: its summary, and its rows as an index."""

    batch: Batch

    def via(self, transfer: TransferEngine) -> GroupEntry:
        """The same group, its rows read through another engine."""
        return dataclasses.replace(self, batch=self.batch.via(transfer))
