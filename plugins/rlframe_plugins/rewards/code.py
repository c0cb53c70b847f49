"""Runs the program in a response against the row's tests, in a sandbox."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from rlframe import Episode, RewardError, Row
from rlframe.config import check_range
from rlframe.data import nested_paths, nested_value
from rlframe.interfaces.data import Reward, RewardValue
from rlframe.rewards.loops import LoopThread
from rlframe_plugins.rewards.code_tests import Assertion, Printed, read_tests
from rlframe_plugins.rewards.sandbox.client import (
    ISOLATIONS,
    Isolation,
    Test,
    Unavailable,
    run_tests,
)
from rlframe_plugins.rewards.sandbox.limits import Limits

__all__ = ["CodeReward", "last_program"]

_LOG = logging.getLogger("rlframe.reward")
_AUTO = "auto"
_USUAL = ("tests", "test_cases", "test_list", "test", "input_output", "reward_model.ground_truth")
_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.M | re.S)
_LANGUAGES = ("", "python", "python3", "py")
_PROBE = Test(("-c", "print(1)"))


class CodeReward(Reward):
    """The share of the row's tests, 0 to 1, that the last fenced block of Python passes.

    Every test runs in a process of its own with limits; see ``docs/rewards.md`` for what holds a
    hostile program and what does not. A response without a block of Python gets 0.
    """

    limits_itself = True

    @dataclass(frozen=True)
    class Config:
        """Options of the code reward."""

        column: str = _AUTO
        """Column of the tests; auto takes the usual names."""
        test_s: float = 5.0
        """Longest time of one test, seconds, above 0; what takes longer has failed."""
        total_s: float = 20.0
        """Longest time of all tests of a response, seconds; the rest has failed."""
        memory_mb: int = 512
        """Memory of a program with all its processes, MiB, at least 32."""
        disk_mb: int = 32
        """What a program may write, MiB, at least 1."""
        processes: int = 16
        """Processes and threads of a program at a time, at least 1."""
        output_kb: int = 1024
        """What a test may print, KiB, at least 1."""
        workers: int = 0
        """Programs that run at the same time; 0 takes one a CPU core."""
        packages: bool = False
        """Programs may import what is installed in this environment, not only Python's own."""
        isolation: Literal["auto", "namespaces", "filters", "process"] = "auto"
        """auto takes namespaces, else filters; process has limits only, no isolation."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            for name in ("test_s", "total_s"):
                check_range(self, name, above=0)
            for name in ("disk_mb", "processes", "output_kb"):
                check_range(self, name, 1)
            check_range(self, "memory_mb", 32)
            check_range(self, "workers", 0)
            if not self.column:
                raise ValueError("column must name a column of the dataset")

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())
        c = self.config
        self._limits = Limits(c.test_s, c.total_s, c.memory_mb, c.disk_mb, c.processes, c.output_kb)
        self._loop = LoopThread("reward code")
        self._turns: asyncio.Semaphore | None = None
        self._isolation: Isolation | None = None

    def check(self, columns: Sequence[str]) -> None:
        """Raises RewardError when there is no column of tests, or no way to isolate programs."""
        wanted = _USUAL if self.config.column == _AUTO else (self.config.column,)
        tops = {name.partition(".")[0] for name in wanted}
        if self.config.column not in columns and not tops & set(columns):
            raise RewardError(_missing(wanted, sorted(columns)))
        with ThreadPoolExecutor(1) as apart:
            apart.submit(asyncio.run, self._choose()).result()

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`. Raises RewardError where the row has no tests that can be read."""
        tests = self._tests(row)
        shares: list[RewardValue] = await self._loop.run(
            lambda: _gather([self._share(tests, episode.text) for episode in episodes]), None
        )
        return shares

    async def _share(self, tests: list[Printed | Assertion], text: str) -> float:
        code = last_program(text)
        if code is None:
            return 0.0
        if self._turns is None:
            self._turns = asyncio.Semaphore(self.config.workers or os.cpu_count() or 1)
        async with self._turns:
            outcomes = await run_tests(
                await self._choose(),
                self._limits,
                [test.test(code) for test in tests],
                packages=self.config.packages,
            )
        passed = [test.passed(out) for test, out in zip(tests, outcomes, strict=True)]
        return sum(passed) / len(passed)

    async def _choose(self) -> Isolation:
        """The way to isolate, tried once. Raises RewardError."""
        if self._isolation is not None:
            return self._isolation
        wanted = self.config.isolation
        reasons = []
        for way in ISOLATIONS if wanted == "auto" else (wanted,):
            try:
                (outcome,) = await run_tests(
                    way, self._limits, [_PROBE], packages=self.config.packages
                )
            except Unavailable as error:
                reasons.append(f"{way}: {error}")
                continue
            if outcome.output.strip() != "1":
                raise RewardError(
                    f"reward 'code': Python does not start within these limits: {outcome}"
                )
            _LOG.info("reward 'code' isolates programs by: %s", way)
            self._isolation = way
            return way
        raise RewardError(
            f"reward 'code': programs cannot be isolated here. {'; '.join(reasons)}. Run it on "
            "Linux with user namespaces, or with Landlock and seccomp; reward.isolation=process "
            "runs programs with limits but with all rights of this user"
        )

    def _tests(self, row: Row) -> list[Printed | Assertion]:
        wanted = _USUAL if self.config.column == _AUTO else (self.config.column,)
        for path in wanted:
            try:
                return read_tests(nested_value(row.columns, path), path)
            except KeyError:
                continue
        raise RewardError(_missing(wanted, nested_paths(row.columns)))


def last_program(text: str) -> str | None:
    """The last fenced block of Python, or of no named language; None where there is none."""
    found = [code for name, code in _FENCE.findall(text) if name.lower() in _LANGUAGES]
    return found[-1] if found else None


def _missing(wanted: Sequence[str], known: Sequence[str]) -> str:
    return (
        f"reward 'code' needs tests in column {' or '.join(wanted)}, which the dataset does not "
        f"have; it has: {', '.join(known) or 'none'}. Set the reward's column"
    )


async def _gather(calls: Sequence[Coroutine[Any, Any, float]]) -> list[float]:
    """All results; the first failure ends the others before it is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
