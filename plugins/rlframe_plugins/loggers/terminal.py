"""A live view in a terminal; one line a step where there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe import Config
from rlframe.interfaces.loop import Logger, Metrics
from rlframe_plugins.loggers.curve import plot, sparkline
from rlframe_plugins.loggers.history import History, duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

__all__ = ["TerminalLogger"]

_WIDTH = 120
"""Widest line, characters."""


class TerminalLogger(Logger):
    """Progress, figures, times, the reward's curve; at the end what came out and where it lies."""

    def __init__(self, config: None = None, *, console: Console | None = None) -> None:
        super().__init__(config)
        self._console = console
        self._live: Live | None = None
        self._history: History | None = None
        self._sample = ""
        self._run_dir = ""

    def start(self, run_dir: str, config: Config, total_steps: int, first_step: int) -> None:
        """See :class:`Logger`."""
        from rich.live import Live

        self._run_dir = run_dir
        self._history = History(total_steps, step=first_step)
        if first_step:
            self._history.read(Path(run_dir) / "metrics.jsonl", first_step)
        self._console = console = self._console or _console()
        self.message(f"run: {run_dir}")
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, auto_refresh=False, get_renderable=self._view)
            self._live.start()

    def log(self, step: int, metrics: Metrics) -> None:
        """See :class:`Logger`."""
        assert self._history is not None, "start comes first"
        if not self._history.add(step, metrics):
            return
        if self._live is not None:
            self._live.refresh()
        else:
            self._print(self._line())

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`Logger`."""
        if not rows:
            return
        row = rows[0]
        self._sample = f"sample: {row.get('prompt')!r} -> {row.get('response')!r}"
        if row.get("reward") is not None:
            self._sample += f"  reward {row['reward']:.3g}"
        if self._live is None:
            self._print(self._sample)

    def message(self, text: str) -> None:
        """See :class:`Logger`."""
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """See :class:`Logger`."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._history is not None:
            self._conclude(self._history)
            self._history = None

    # --- inside -------------------------------------------------------------------------------

    def _width(self) -> int:
        assert self._console is not None
        return min(self._console.width, _WIDTH) if self._console.is_terminal else _WIDTH

    def _print(self, line: str) -> None:
        self.message(_cut(line, self._width()))

    def _line(self) -> str:
        history = self._history
        assert history is not None
        digits = len(str(history.total_steps))
        parts = [f"step {history.step:>{digits}}/{history.total_steps}"]
        parts += [f"{word} {value}" for word, value in history.figures()]
        if history.seconds:
            parts.append(duration(history.seconds[-1]))
        left = history.eta_s()
        if left:
            parts.append(f"eta {duration(left)}")
        return "  ".join(parts)

    def _view(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        history = self._history
        if history is None:
            return Text("")
        width = self._width()
        left = history.eta_s()
        head = Table.grid(padding=(0, 1))
        head.add_row(
            f"step {history.step}/{history.total_steps}",
            ProgressBar(max(history.total_steps, 1), history.step, width=max(width - 40, 10)),
            f"eta {duration(left)}" if left is not None else "",
        )
        figures = Table.grid(padding=(0, 3))
        pairs = history.figures()
        figures.add_row(*(Text(word, style="dim") for word, _ in pairs))
        figures.add_row(*(Text(value, style="bold") for _, value in pairs))
        stages = "  ".join(f"{name} {duration(value)}" for name, value in history.stages())
        lines = [f"time    {stages}" if stages else "", history.validation_line(), self._sample]
        if history.curve:
            lines.insert(1, f"{history.curve_name:<7} {sparkline(history.curve, width - 8)}")
        texts = [
            Text(_cut(line, width), no_wrap=True, overflow="ellipsis") for line in lines if line
        ]
        return Group(head, figures, *texts)

    def _conclude(self, history: History) -> None:
        assert self._console is not None
        if len(history.curve) > 1:
            unicode = "utf" in (self._console.encoding or "").lower()
            self.message(f"{history.curve_name} over {len(history.curve)} steps")
            for line in plot(history.curve, min(self._width(), 72), unicode=unicode):
                self.message(line)
        if history.validation_line():
            self.message(history.validation_line())
        self.message(f"run: {self._run_dir}")


def _console() -> Console:
    """A console that falls silent when its reader has gone; the run goes on."""
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, sys.stdout.fileno())
            os.close(sink)

    return Lasting(file=sys.stdout)


def _cut(line: str, width: int) -> str:
    line = " ".join(line.split("\n"))
    return line if len(line) <= width else line[: width - 3] + "..."
