"""All loggers of a run as one: a fault names its logger, and every one of them is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlframe.errors import RlframeError
from rlframe.interfaces.loop import Logger, Metrics

if TYPE_CHECKING:
    from rlframe.config import Config

__all__ = ["LoggerError", "LoggerList"]


class LoggerError(RlframeError):
    """A logger raised; the message names it."""


class LoggerList(Logger):
    """Tells each logger in turn. Raises LoggerError; the first one where several fail to close."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        super().__init__(None)
        self._loggers = loggers

    def start(self, run_dir: str, config: Config, total_steps: int, first_step: int) -> None:
        """See :class:`Logger`."""
        self._tell("start", run_dir, config, total_steps, first_step)

    def log(self, step: int, metrics: Metrics) -> None:
        """See :class:`Logger`."""
        self._tell("log", step, metrics)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`Logger`."""
        self._tell("samples", step, rows)

    def message(self, text: str) -> None:
        """See :class:`Logger`."""
        self._tell("message", text)

    def close(self) -> None:
        """See :class:`Logger`; none is left open because another one failed."""
        first: LoggerError | None = None
        for logger in self._loggers:
            try:
                self._ask(logger, "close")
            except LoggerError as error:
                first = first or error
        if first is not None:
            raise first

    def _tell(self, verb: str, *arguments: Any) -> None:
        for logger in self._loggers:
            self._ask(logger, verb, *arguments)

    def _ask(self, logger: Logger, verb: str, *arguments: Any) -> None:
        try:
            getattr(logger, verb)(*arguments)
        except RlframeError:
            raise
        except Exception as error:
            name = type(logger).__name__
            text = f"logger '{name}' raised in {verb}: {type(error).__name__}: {error}"
            raise LoggerError(text) from error
