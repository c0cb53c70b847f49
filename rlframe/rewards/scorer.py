"""Scoring a group: every reward on every episode, faults named, weighted sums."""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlframe.data.nested import nested_paths, nested_value
from rlframe.errors import RewardError, unknown_name
from rlframe.interfaces.data import Reward
from rlframe.requests import Episode, Row
from rlframe.rewards.calls import TookTooLong
from rlframe.rewards.function import FunctionReward
from rlframe.rewards.loops import LoopThread
from rlframe.rewards.retries import may_retry, pauses
from rlframe.rewards.values import LARGEST, NotAReward, as_parts, shown, told

if TYPE_CHECKING:
    from rlframe.config import RewardConfig, Selected

__all__ = ["Scorer", "WeightedReward", "load_reward"]

_SHOWN = 200
"""Characters of prompt and response in an error."""
_ADVICE = "\n  reward.on_error=skip leaves such responses out and counts them"


@dataclass(frozen=True)
class WeightedReward:
    """One summand of the outcome reward, logged as ``label``; it scores rows that fit ``when``."""

    label: str
    reward: Reward
    weight: float = 1.0
    when: Mapping[str, Any] = field(default_factory=dict)
    into: str = ""
    """Column of the episode that it is written to, instead of being a summand."""

    def fits(self, columns: Mapping[str, Any]) -> bool:
        """Whether a row has a wanted value in every column of ``when``. Raises RewardError."""
        return all(self._has(columns, path, wanted) for path, wanted in self.when.items())

    def _has(self, columns: Mapping[str, Any], path: str, wanted: Any) -> bool:
        try:
            value = nested_value(columns, path)
        except KeyError:
            text = unknown_name("column", path, nested_paths(columns))
            raise RewardError(f"reward '{self.label}': when: {text}") from None
        return value in wanted if isinstance(wanted, list | tuple) else bool(value == wanted)


def load_reward(selected: Selected) -> Reward:
    """The reward that a config selected: a :class:`Reward` class, or a function.

    Raises PluginError when it cannot be imported, RewardError when it is neither.
    """
    value = selected.load()
    if inspect.isclass(value) and issubclass(value, Reward):
        reward: Reward = value(selected.config)
        return reward
    if isinstance(value, Reward):
        return value
    if callable(value) and not inspect.isclass(value):
        return FunctionReward(value, selected.name.rpartition(":")[2])
    raise RewardError(
        f"reward '{selected.name}' is {getattr(value, '__name__', value)!r}: give a function, or a "
        "class derived from rlframe.interfaces.data.Reward"
    )


class Scorer:
    """Fills ``reward`` and ``reward_parts`` of episodes.

    What a reward raised, or did not give in time, is asked for ``retries`` times more, after a
    pause of ``retry_wait_s`` seconds that doubles. ``timeout_s`` is the longest time of one reward
    for one group, in seconds, but for a reward that has limits of its own. With
    ``on_error='skip'`` an episode that a reward could not score leaves its group.
    """

    def __init__(
        self,
        rewards: Sequence[WeightedReward],
        *,
        on_error: Literal["fail", "skip"] = "fail",
        timeout_s: float = 60.0,
        retries: int = 0,
        retry_wait_s: float = 1.0,
    ) -> None:
        self.rewards = tuple(rewards)
        self.retries, self.retry_wait_s = retries, retry_wait_s
        self.on_error = on_error
        self.timeout_s = timeout_s
        self._fault = ""
        self._loops = {id(one): LoopThread(f"reward {one.label}") for one in self.rewards}

    @classmethod
    def from_config(cls, config: RewardConfig) -> Scorer:
        """The rewards that a config names, loaded."""
        rewards = [
            WeightedReward(p.label, load_reward(p.reward), p.weight, p.when, p.into)
            for p in config.parts
        ]
        return cls(
            rewards,
            on_error=config.on_error,
            timeout_s=config.timeout_s,
            retries=config.retries,
            retry_wait_s=config.retry_wait_s,
        )

    @property
    def gives_rewards(self) -> bool:
        """Whether any part is a summand of the outcome reward."""
        return any(not one.into for one in self.rewards)

    def check(self, columns: Mapping[str, Any]) -> None:
        """Try a row. Raises RewardError where a reward for it needs a column that it lacks."""
        for one in self._for(columns):
            try:
                one.reward.check(sorted(columns))
            except RewardError as error:
                raise RewardError(f"{error}{_nested_hint(str(error), columns)}") from error

    def _for(self, columns: Mapping[str, Any]) -> list[WeightedReward]:
        """The rewards that score a row. Raises RewardError when there are some, but none for it."""
        chosen = [one for one in self.rewards if one.fits(columns)]
        if chosen or not self.rewards:
            return chosen
        routes = "; ".join(f"'{one.label}' {dict(one.when)}" for one in self.rewards)
        raise RewardError(f"no reward is for this row, by 'when': {routes}")

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[Episode]:
        """Score in place; returns the episodes that stay, in order.

        Raises RewardError naming the reward, the prompt and the response: an exception, a time-out,
        NaN, infinity, a wrong type or number of values.
        """
        if not episodes:
            return []
        try:
            rewards = self._for(row.columns)
        except RewardError as error:
            self._skip(RewardError(f"{row.source or f'group {row.group_id}'}: {error}"))
            return []
        results = await asyncio.gather(*(self._outcomes(one, row, episodes) for one in rewards))
        kept: list[Episode] = []
        for position, episode in enumerate(episodes):
            values = [result[position] for result in results]
            try:
                self._fill(row, episode, rewards, values)
            except RewardError as error:
                self._skip(error)
                continue
            kept.append(episode)
        return kept

    def _skip(self, error: RewardError) -> None:
        """Note the fault, or raise it with ``on_error='fail'``."""
        if self.on_error == "fail":
            raise error
        self._fault = " ".join(str(error).removesuffix(_ADVICE).split())

    def take_fault(self) -> str:
        """The last fault that was skipped since the last call, empty where there was none."""
        fault, self._fault = self._fault, ""
        return fault

    async def _outcomes(
        self, one: WeightedReward, row: Row, episodes: Sequence[Episode]
    ) -> list[Any]:
        """A value or an exception an episode, after every retry."""
        found = await self._asked(one, row, episodes)
        for pause in pauses(self.retries, self.retry_wait_s):
            failed = [i for i, value in enumerate(found) if may_retry(value)]
            if not failed:
                break
            await asyncio.sleep(pause)
            alone = isinstance(one.reward, FunctionReward) and not one.reward.batched
            places = failed if alone else range(len(episodes))
            again = await self._asked(one, row, [episodes[i] for i in places])
            fresh = dict(zip(places, again, strict=True))
            found = [fresh[i] if i in failed else value for i, value in enumerate(found)]
        return found

    async def _asked(self, one: WeightedReward, row: Row, episodes: Sequence[Episode]) -> list[Any]:
        """A value or an exception an episode; a fault of the whole call is that of each."""
        try:
            if isinstance(one.reward, FunctionReward):
                return await one.reward.outcomes(row, episodes, self.timeout_s)
            values = await self._loops[id(one)].run(
                lambda: one.reward.score(row, episodes),
                None if one.reward.limits_itself else self.timeout_s,
            )
            if not isinstance(values, list) or len(values) != len(episodes):
                found = len(values) if isinstance(values, list) else type(values).__name__
                raise NotAReward(f"{found} rewards for {len(episodes)} responses")
        except (Exception, SystemExit) as error:
            return [error] * len(episodes)
        return list(values)

    def _fill(
        self,
        row: Row,
        episode: Episode,
        rewards: Sequence[WeightedReward],
        values: Sequence[Any],
    ) -> None:
        parts: dict[str, float] = {}
        total: float | None = None
        if episode.earned is not None:
            parts = self._earned(row, episode)
            total = sum(parts.values()) if parts else None
        for one, value in zip(rewards, values, strict=True):
            if isinstance(value, BaseException):
                raise RewardError(self._tell(one, value, row, episode)) from value
            try:
                found = as_parts(value, one.label)
            except NotAReward as error:
                raise RewardError(self._tell(one, error, row, episode)) from error
            weighted = one.weight * sum(found.values())
            if one.into:
                episode.columns[one.into] = weighted if found else math.nan
            elif found:
                total = (total or 0.0) + weighted
            parts |= found
        if total is not None and not abs(total) <= LARGEST:
            raise RewardError(
                f"the weighted sum of the rewards is {total}, not a finite number (of 32 bits): "
                f"{', '.join(f'{name} {value:g}' for name, value in parts.items())}"
            )
        episode.reward, episode.reward_parts = total, parts

    def _earned(self, row: Row, episode: Episode) -> dict[str, float]:
        """What the environment gave, checked as a reward is."""
        try:
            return as_parts(episode.earned, "env")
        except NotAReward as error:
            where = row.source or f"group {row.group_id}"
            raise RewardError(
                f"the environment gave {error} as reward ({where}){_ADVICE}"
            ) from error

    def _tell(self, one: WeightedReward, error: BaseException, row: Row, episode: Episode) -> str:
        if isinstance(error, TookTooLong):
            what = f"timed out: the group was not scored in reward.timeout_s={self.timeout_s:g}"
        elif isinstance(error, NotAReward):
            what = f"returned {error}"
        elif isinstance(error, RewardError):
            what = f"failed: {error}"
        else:
            what = f"raised {told(error)}{_place(error)}"
        return (
            f"reward '{one.label}' {what}\n"
            f"  prompt ({row.source or f'group {row.group_id}'}): "
            f"{shown(row.columns.get('prompt'), _SHOWN)}\n"
            f"  response: {shown(episode.text, _SHOWN)}{_ADVICE}"
        )


def _nested_hint(message: str, columns: Mapping[str, Any]) -> str:
    """How a column that a message asks for is reached inside of another one."""
    for path in nested_paths(columns):
        name = path.rpartition(".")[2]
        if path not in columns and f"'{name}'" in message:
            return f". It is inside of another column: data.columns.{name}={path}"
    return ""


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
