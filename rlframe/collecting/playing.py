"""One episode of an environment: tried again where it broke, left out or told where it stays so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe.asking import raised_in
from rlframe.errors import RlframeError, RolloutError
from rlframe.interfaces.data import Environment
from rlframe.requests import Completion, Episode, Request, Row
from rlframe.rewards.retries import pauses

if TYPE_CHECKING:
    from rlframe.rewards import Scorer

__all__ = ["Playing"]

Generate = Callable[[Request], Awaitable[Completion]]


@dataclass(frozen=True)
class Playing:
    """Plays episodes; how often it tries, and what then, is as for the rewards of ``scorer``."""

    environment: Environment
    scorer: Scorer

    async def play(self, row: Row, request: Request, generate: Generate) -> Episode:
        """An episode, with a ``fault`` where it is to be left out.

        Raises RolloutError where the environment raised and ``reward.on_error`` is fail, or where
        it gave what is no episode; errors of the rollout engine stay what they are.
        """
        found = await self._try(row, request, generate)
        for pause in pauses(self.scorer.retries, self.scorer.retry_wait_s):
            if isinstance(found, Episode) and not found.fault:
                break
            await asyncio.sleep(pause)
            found = await self._try(row, request, generate)
        if isinstance(found, Episode):
            return found
        if self.scorer.on_error == "fail":
            raise found
        return Episode(request, [], "error", fault=str(found))

    async def _try(self, row: Row, request: Request, generate: Generate) -> Episode | RolloutError:
        what = f"environment {type(self.environment).__name__}.run"
        try:
            episode = await self.environment.run(row, request, generate)
        except RlframeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it raised, it may pass
            found = RolloutError(raised_in(what, error))
            found.__cause__ = error
            return found
        _check_episode(what, episode)
        return episode


def _check_episode(what: str, episode: object) -> None:
    """Raises RolloutError where an environment gave no episode, or lists that do not match."""
    if not isinstance(episode, Episode):
        raise RolloutError(f"{what} returned {type(episode).__name__}: return an Episode")
    if not episode.segments:
        raise RolloutError(f"{what} returned an Episode without segments")
    for segment in episode.segments:
        lists = ("response_mask", "logprobs", "versions", "turn_ids")
        count = len(segment.response_ids)
        odd = [name for name in lists if len(getattr(segment, name)) != count]
        if odd:
            raise RolloutError(
                f"{what}: a segment has {count} response_ids but "
                f"{len(getattr(segment, odd[0]))} {odd[0]}"
            )
