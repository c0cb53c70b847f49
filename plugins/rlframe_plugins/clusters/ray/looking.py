"""Looking at workers beside their calls: where they are, and what they did."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray

from rlframe.timeline import ProcessSpans
from rlframe_plugins.clusters.ray.crew import Crew, Member

__all__ = ["Spans", "stacks_of"]

_ANSWER_S = 0.5
"""How long is waited for answers; those that come later are taken the next time."""


class Spans:
    """Asks workers for their spans; each has one question open at most."""

    def __init__(self) -> None:
        self._open: dict[Any, Any] = {}

    def of(self, crews: Sequence[Crew]) -> list[ProcessSpans]:
        """What each worker that answers did since it was asked before.

        ``now`` of an answer to an earlier question is not a number: nothing follows from it.
        """
        living = [m for crew in crews if crew.failure is None for m in crew.members]
        late = {key: ref for key, ref in self._open.items() if key in map(_key, living)}
        self._open = {_key(one): late.get(_key(one)) or _asked(one) for one in living}
        refs = [ref for ref in self._open.values() if ref is not None]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=_ANSWER_S)
        found = []
        for key, ref in list(self._open.items()):
            done = [ref] if ref is None else ray.wait([ref], timeout=0)[0]
            if not done:
                continue
            del self._open[key]
            spans = None if ref is None else _answer(ref)
            if spans is not None:
                found.append(replace(spans, now=math.nan) if key in late else spans)
        return found


def stacks_of(crews: Sequence[Crew]) -> str:
    """Stacks of every worker that answers."""

    async def all_of_them() -> str:
        return "\n".join([await crew.stacks() for crew in crews])

    return asyncio.run(all_of_them())


def _key(member: Member) -> Any:
    return member.actor


def _asked(member: Member) -> Any:
    """A reference to the answer, None where the worker cannot be asked."""
    try:
        return member.actor.spans.remote()
    except ray.exceptions.RayError:
        return None


def _answer(ref: Any) -> ProcessSpans | None:
    try:
        spans: ProcessSpans | None = ray.get(ref)
    except ray.exceptions.RayError:
        return None  # dead, or not yet started again
    return spans
