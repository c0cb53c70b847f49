"""Whole episodes of several turns as JSON lines: turns, tools, tokens, masks, rewards."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlframe.requests import Episode, Row

__all__ = ["Tracer"]


@dataclass(frozen=True)
class Tracer:
    """Writes the episodes of every ``every``-th draw that have a trace; 0 writes none.

    Each process writes a file of its own in ``folder``, which need not be there.
    """

    folder: str = ""
    every: int = 0

    def write(self, row: Row, episodes: Sequence[Episode]) -> None:
        """Add a line for each episode of a draw; validation's draws (below 0) are left out."""
        if not self.every or row.group_id < 0 or row.group_id % self.every:
            return
        lines = [_line(row, episode) for episode in episodes if episode.trace]
        if lines:
            folder = Path(self.folder)
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"episodes-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(lines)


def _line(row: Row, episode: Episode) -> str:
    line = {
        "group_id": row.group_id,
        "episode_id": episode.request.episode_id,
        "source": row.source,
        "finish_reason": episode.finish_reason,
        "fault": episode.fault,
        "reward": episode.reward,
        "reward_parts": episode.reward_parts,
        "figures": episode.figures,
        "turns": episode.trace,
        "segments": [asdict(segment) for segment in episode.segments],
    }
    return json.dumps(line, default=str) + "\n"
