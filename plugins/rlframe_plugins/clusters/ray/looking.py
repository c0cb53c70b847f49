"""Looking at workers beside their calls: where they are, and what they did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import ray

from rlframe.timeline import ProcessSpans
from rlframe_plugins.clusters.ray.crew import Crew

__all__ = ["spans_of", "stacks_of"]

_ANSWER_S = 5.0
"""How long a worker may take to answer; others are left out."""


def spans_of(crews: Sequence[Crew]) -> list[ProcessSpans]:
    """What each worker that answers did since it was asked before."""
    living = [crew for crew in crews if crew.failure is None]
    refs = [member.actor.spans.remote() for crew in living for member in crew.members]
    if not refs:
        return []
    ready, _ = ray.wait(refs, num_returns=len(refs), timeout=_ANSWER_S)
    found = []
    for ref in ready:
        try:
            spans: ProcessSpans | None = ray.get(ref)
        except ray.exceptions.RayError:
            continue  # dead, or not yet started again
        if spans is not None:
            found.append(spans)
    return found


def stacks_of(crews: Sequence[Crew]) -> str:
    """Stacks of every worker that answers."""

    async def all_of_them() -> str:
        return "\n".join([await crew.stacks() for crew in crews])

    return asyncio.run(all_of_them())
