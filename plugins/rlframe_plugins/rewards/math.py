"""1 when the response is mathematically equal to the answer, else 0, by math-verify."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlframe import Episode, RewardError, Row
from rlframe.config import check_range
from rlframe.interfaces.data import Reward, RewardValue
from rlframe.rewards.calls import FunctionThread
from rlframe_plugins.rewards.answers import AUTO, answer_of, check_answer_column

__all__ = ["MathReward"]

_START_S = 120.0
"""Longest time in which the process of math-verify starts, seconds."""


class MathReward(Reward):
    r"""Compares expressions: ``\boxed{\frac{1}{2}}``, ``$0.5$`` and ``1/2`` are equal.

    math-verify runs in a process of its own, so that an expression without end costs ``limit_s``
    seconds and the reward 0, wherever the reward itself runs (any thread, no signals).
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the math reward."""

        column: str = AUTO
        """Column of the right answer, LaTeX or plain; auto takes the usual names."""
        limit_s: float = 5.0
        """Longest time for one response, seconds, above 0; what takes longer is wrong."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            check_range(self, "limit_s", above=0)
            if not self.column:
                raise ValueError("column must name a column of the dataset")

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())
        self._thread = FunctionThread("reward math")
        self._worker: _Worker | None = None

    def check(self, columns: Sequence[str]) -> None:
        """Raises RewardError when the answer's column is not there."""
        check_answer_column(columns, self.config.column, "math")

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`. Raises RewardError where the answer cannot be parsed."""
        answer = answer_of(row.columns, self.config.column, "math")
        texts = [episode.text for episode in episodes]
        values = await self._thread.run(lambda: [self._compare(answer, t) for t in texts], None)
        return list(values)

    def _compare(self, answer: str, response: str) -> float:
        if self._worker is None:
            self._worker = _Worker()
        try:
            reply = self._worker.ask({"answer": answer, "response": response}, self.config.limit_s)
        except _Stopped:
            self._worker = None
            return 0.0
        if "error" in reply:
            raise RewardError(f"reward 'math': {reply['error']}")
        return float(reply["score"])


class _Stopped(Exception):
    """The process took too long, or died of what it was asked; it is gone."""


class _Worker:
    """The process; it ends with the pipe to it, so also when this process is killed."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "rlframe_plugins.rewards.math_worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._pending = b""
        try:
            self._line(_START_S)
        except _Stopped as error:
            code = self._process.returncode
            raise RewardError(f"reward 'math': its process does not start (code {code})") from error

    def ask(self, request: dict[str, str], limit_s: float) -> dict[str, Any]:
        """The reply. Raises _Stopped after ``limit_s`` seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self._end()
            raise _Stopped from error
        reply: dict[str, Any] = json.loads(self._line(limit_s))
        return reply

    def _line(self, limit_s: float) -> bytes:
        """The next line of output. Raises _Stopped."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    break
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    break
                self._pending += chunk
        line, found, self._pending = self._pending.partition(b"\n")
        if not found:
            self._end()
            raise _Stopped
        return line

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was not sent is lost with the process
                    continue
