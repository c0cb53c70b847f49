"""A reward from a plain function: dataset columns and the response by name.

Example::

    def reward(response, answer):
        return float(response.strip() == answer)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from rlframe.errors import RewardError, nearest
from rlframe.interfaces.data import Reward, RewardValue
from rlframe.requests import Episode, Row
from rlframe.rewards.calls import FunctionThread, TookTooLong
from rlframe.rewards.loops import LoopThread
from rlframe.rewards.values import NotAReward, told

__all__ = ["FunctionReward"]

SINGLE = ("prompt", "prompt_ids", "response", "response_ids", "finish_reason")
"""What a function may name beside dataset columns; one value, for one response."""
ELSEWHERE = {
    "completion": "response",
    "completions": "responses",
    "completion_ids": "response_ids",
    "completions_ids": "response_ids",
    "solution_str": "response",
    "generation": "response",
    "generations": "responses",
    "output": "response",
    "outputs": "responses",
}
"""Names that other libraries' reward functions have for the same; for messages."""
BATCHED = {"prompts": "prompt", "responses": "response", "finish_reasons": "finish_reason"}
"""Plural names: the function scores a group at once, and every argument is a list over it."""


class FunctionReward(Reward):
    """Calls ``function`` with the arguments that it names.

    Arguments are columns of the dataset and ``prompt``, ``prompt_ids``, ``response``,
    ``response_ids``, ``finish_reason``; ``**kwargs`` takes all of them. A function that names
    ``responses``, ``prompts`` or ``finish_reasons`` is called once a group, each argument a list.
    ``async`` functions run together on a loop in a thread of their own; plain ones run one after
    the other in another.
    Raises RewardError where the signature cannot be called so.
    """

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        super().__init__(None)
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self._read_signature()
        self._async = _is_async(function)
        self._thread = FunctionThread(f"reward {self.name}")
        self._loop = LoopThread(f"reward {self.name}")

    def check(self, columns: Sequence[str]) -> None:
        """Raises RewardError where a parameter is neither a known name nor one of ``columns``."""
        known = {*columns, *(BATCHED if self.batched else SINGLE), "response_ids", "prompt_ids"}
        for name in self._required:
            if name not in known:
                close = ELSEWHERE.get(name) or nearest(name, known)
                hint = f" Did you mean '{close}'?" if close else ""
                raise RewardError(
                    f"reward '{self.name}' has the parameter '{name}', which is no column of the "
                    f"dataset.{hint} Columns: {', '.join(sorted(columns)) or 'none'}; also known: "
                    f"{', '.join(SINGLE)}, and {', '.join(BATCHED)} to score a group at once"
                )

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`; raises what the function raised."""
        results = await self.outcomes(row, episodes, None)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    async def outcomes(
        self, row: Row, episodes: Sequence[Episode], timeout_s: float | None
    ) -> list[Any]:
        """One value or exception an episode; ``timeout_s`` is for the whole group, in seconds."""
        if self.batched:
            return await self._score_batch(row, episodes, timeout_s)
        if self._async:
            return await self._score_together(row, episodes, timeout_s)
        return await self._score_in_turn(row, episodes, timeout_s)

    # --- calling ------------------------------------------------------------------------------

    async def _score_batch(
        self, row: Row, episodes: Sequence[Episode], timeout_s: float | None
    ) -> list[Any]:
        each = [self._values(row, episode) for episode in episodes]
        columns: dict[str, list[Any]] = {
            name: [values.get(name) for values in each] for values in each for name in values
        }
        for plural, single in BATCHED.items():
            columns[plural] = columns.pop(single, [])
        arguments = self._choose(columns)
        if self._async:
            result = await self._loop.run(lambda: self.function(**arguments), timeout_s)
        else:
            result = await self._thread.run(lambda: self.function(**arguments), timeout_s)
            if inspect.isawaitable(result):
                result = await self._loop.run(partial(_awaited, result), timeout_s)
        return _checked_list(result, len(episodes))

    async def _score_together(
        self, row: Row, episodes: Sequence[Episode], timeout_s: float | None
    ) -> list[Any]:
        async def one(episode: Episode) -> Any:
            return await self.function(**self._choose(self._values(row, episode)))

        return await self._together([partial(one, episode) for episode in episodes], timeout_s)

    async def _together(
        self, calls: Sequence[Callable[[], Awaitable[Any]]], timeout_s: float | None
    ) -> list[Any]:
        """All on the loop's thread; what is not done at the limit has failed."""
        done: dict[int, Any] = {}

        async def work() -> None:
            await asyncio.gather(*(_note(call, done, n) for n, call in enumerate(calls)))

        try:
            await self._loop.run(work, timeout_s)
        except TookTooLong as error:
            return [done.get(n, error) for n in range(len(calls))]
        return [done[n] for n in range(len(calls))]

    async def _score_in_turn(
        self, row: Row, episodes: Sequence[Episode], timeout_s: float | None
    ) -> list[Any]:
        """All in one call to the thread; what is not done at the limit has failed."""
        results: list[Any] = []

        def work() -> None:
            for episode in episodes:
                try:
                    arguments = self._choose(self._values(row, episode))
                    results.append(self.function(**arguments))
                except BaseException as error:
                    results.append(error)

        try:
            await self._thread.run(work, timeout_s)
        except TookTooLong as error:
            done = results[: len(episodes)]
            return done + [error] * (len(episodes) - len(done))
        if not any(inspect.isawaitable(result) for result in results):
            return results
        return await self._together([partial(_awaited, result) for result in results], timeout_s)

    # --- arguments ----------------------------------------------------------------------------

    def _values(self, row: Row, episode: Episode) -> dict[str, Any]:
        """What may be named. A function that changes a value changes its own copy of it."""
        columns = {**row.columns, **episode.columns, "prompt": row.columns.get("prompt")}
        wanted = columns if self._takes_all else self._wanted & columns.keys()
        return {
            **{name: _copied(columns[name]) for name in wanted},
            "prompt_ids": list(row.prompt_ids),
            "response": episode.text,
            "response_ids": [i for s in episode.segments for i in s.response_ids],
            "finish_reason": episode.finish_reason,
        }

    def _choose(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in self._required:
            if name not in values:
                raise RewardError(f"this row has no column '{name}'")
        if self._takes_all:
            return values
        return {name: values[name] for name in self._names if name in values}

    def _read_signature(self) -> None:
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError) as error:
            raise RewardError(f"reward '{self.name}' has no readable signature: {error}") from error
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self._names = [p.name for p in parameters if p.kind in by_name]
        self._required = [
            p.name for p in parameters if p.kind in by_name and p.default is inspect.Parameter.empty
        ]
        self._takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self._wanted = {BATCHED.get(name, name) for name in self._names}
        self.batched = any(name in BATCHED for name in self._names)
        self._check_kinds(parameters)

    def _check_kinds(self, parameters: Any) -> None:
        for parameter in parameters:
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise RewardError(
                    f"reward '{self.name}': parameter '{parameter.name}' is positional-only; "
                    "arguments are given by name"
                )
        mixed = [n for n in self._names if n in ("prompt", "response", "finish_reason")]
        if self.batched and mixed:
            raise RewardError(
                f"reward '{self.name}' mixes '{mixed[0]}' (one response) with plural names (a "
                "whole group): use one of the two forms"
            )
        if not self._names and not self._takes_all:
            raise RewardError(f"reward '{self.name}' takes no argument: name at least 'response'")


async def _note(call: Callable[[], Awaitable[Any]], done: dict[int, Any], place: int) -> None:
    """Keep what a call comes to, whatever it raises; only being cancelled itself goes on."""
    try:
        done[place] = await call()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        done[place] = RuntimeError("it was cancelled from inside")
        done[place].__cause__ = error
    except BaseException as error:
        done[place] = error


async def _awaited(value: Any) -> Any:
    """A value, or what a callable that returned an awaitable comes to."""
    if inspect.isawaitable(value):
        awaitable: Awaitable[Any] = value
        return await awaitable
    return value


def _copied(value: Any) -> Any:
    """A value with dicts and lists of its own, as deep as they go; what they hold is shared."""
    if type(value) is dict:
        return {name: _copied(one) for name, one in value.items()}
    if type(value) is list:
        return [_copied(one) for one in value]
    return value


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(type(function), "__call__", None)  # noqa: B004 - its kind, not its presence
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _checked_list(result: Any, count: int) -> list[Any]:
    """The values of a group. Raises NotAReward."""
    unordered = isinstance(result, str | bytes | Mapping | Set)
    if unordered or not hasattr(result, "__len__") or not hasattr(result, "__iter__"):
        kind = type(result).__name__
        raise NotAReward(f"{kind}, not a list of {count} rewards")
    try:
        values = list(result)
    except Exception as error:  # an array of no dimension, or a sequence of the user's own
        raise NotAReward(
            f"{type(result).__name__}, not a list of {count} rewards: {told(error)}"
        ) from error
    if len(values) != count:
        raise NotAReward(f"{len(values)} rewards for {count} responses")
    return values
