"""Rewards that a service gives: samples as JSON to an address, numbers back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlframe import Episode, RewardError, Row
from rlframe.config import check_range
from rlframe.interfaces.data import Reward, RewardValue
from rlframe.rewards.values import NotAReward, as_parts, shown
from rlframe_plugins.rewards.endpoint import Endpoint, ServiceConfig, check_url

__all__ = ["HttpReward"]


class HttpReward(Reward):
    """POSTs ``{"samples": [..]}`` and reads ``{"rewards": [..]}``, or the list alone.

    A sample holds ``prompt``, ``response``, ``finish_reason`` and the row's columns; a reward is a
    number, a mapping of parts, null to abstain, or ``{"error": text}`` for a fault of that sample.
    """

    limits_itself = True

    @dataclass(frozen=True)
    class Config(ServiceConfig):
        """Options of the remote reward."""

        url: str = ""
        """Address that samples are sent to."""
        columns: tuple[str, ...] = ()
        """Columns that are sent; none named sends all."""
        batch: int = 0
        """Samples in a request at most; 0 sends a group at once."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            super().__post_init__()
            check_url(self.url, "url")
            check_range(self, "batch", 0)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._endpoint = Endpoint("http", config.url, config)

    def check(self, columns: Sequence[str]) -> None:
        """Raises RewardError when a column that is to be sent, or the token, is not there."""
        _check_columns(self.config.columns, columns)
        self._endpoint.check()

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`; a fault of a request is that of each of its samples."""
        _check_columns(self.config.columns, list(row.columns))
        samples = [self._sample(row, episode) for episode in episodes]
        size = self.config.batch or len(samples)
        parts = [samples[start : start + size] for start in range(0, len(samples), size)]
        results = await asyncio.gather(*(self._ask(part) for part in parts))
        return [value for result in results for value in result]

    def _sample(self, row: Row, episode: Episode) -> dict[str, Any]:
        names = self.config.columns or row.columns
        return {
            **{name: row.columns[name] for name in names},
            "prompt": row.columns.get("prompt"),
            "response": episode.text,
            "finish_reason": episode.finish_reason,
        }

    async def _ask(self, samples: list[dict[str, Any]]) -> list[RewardValue]:
        try:
            reply = await self._endpoint.post({"samples": samples})
            values = self._values(reply, len(samples))
        except RewardError as error:
            return [error] * len(samples)
        return [self._value(value) for value in values]

    def _values(self, reply: Any, count: int) -> list[Any]:
        values = reply.get("rewards") if isinstance(reply, Mapping) else reply
        if not isinstance(values, list):
            raise self._endpoint.error(
                f'answered {shown(reply)}; it must be {{"rewards": [..]}} or a list'
            )
        if len(values) != count:
            raise self._endpoint.error(f"answered {len(values)} rewards for {count} samples")
        return values

    def _value(self, value: Any) -> RewardValue:
        if isinstance(value, Mapping) and "error" in value:
            return self._endpoint.error(f"says of this sample: {shown(value['error'], 200)}")
        try:
            as_parts(value, "reward")
        except NotAReward as error:
            return self._endpoint.error(f"answered {error}")
        checked: RewardValue = value
        return checked


def _check_columns(wanted: Sequence[str], columns: Sequence[str]) -> None:
    for name in wanted:
        if name not in columns:
            raise RewardError(
                f"reward 'http' sends column '{name}', which the dataset does not have; it has: "
                f"{', '.join(sorted(columns)) or 'none'}"
            )
