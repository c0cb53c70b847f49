"""``rlframe timeline``: what ran when, what was idle, and what the run waited for."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlframe.errors import ConfigError
from rlframe.snapshots.durable import replace_text
from rlframe.timeline.analysis import Report, report
from rlframe.timeline.chrome import trace
from rlframe.timeline.file import Written, read_timeline
from rlframe.timeline.picture import gantt, page

__all__ = ["add_timeline_command", "timeline"]


def add_timeline_command(subcommands: Any) -> None:
    """Add the command to the parser."""
    command = subcommands.add_parser(
        "timeline", help="draw what ran when: idle time of each pool, the critical path"
    )
    command.add_argument("run_dir", metavar="RUN", help="folder of a run")
    command.add_argument("--steps", metavar="A:B", default="", help="only steps A to B")
    command.add_argument("--html", metavar="FILE", help="write a page that needs nothing else")
    command.add_argument("--svg", metavar="FILE", help="write the picture alone")
    command.add_argument(
        "--chrome", metavar="FILE", help="write a trace for chrome://tracing or Perfetto"
    )
    command.add_argument("--json", action="store_true", help="the figures as JSON")
    command.set_defaults(run=timeline)


def timeline(arguments: argparse.Namespace) -> int:
    """Print the figures, and write what was asked for."""
    spans = _of_steps(read_timeline(arguments.run_dir), arguments.steps)
    found = report(spans)
    title = f"{Path(arguments.run_dir).name}: {found.steps} steps, {found.seconds:.2f} s"
    text = _text(title, found)
    print(json.dumps(_figures(found)) if arguments.json else text)
    if arguments.html:
        _write(arguments.html, page(title, spans, found, text))
    if arguments.svg:
        _write(arguments.svg, gantt(spans, found))
    if arguments.chrome:
        _write(arguments.chrome, json.dumps(trace(spans)))
    return 0


def _of_steps(spans: Sequence[Written], asked: str) -> list[Written]:
    if not asked:
        return list(spans)
    first, colon, last = asked.partition(":")
    try:
        low, high = int(first), int(last if colon else first)
    except ValueError as error:
        raise ConfigError(f"--steps {asked}: give two numbers as in 3:5, or one") from error
    kept = [span for span in spans if low <= span.step <= high]
    if not kept:
        known = sorted({span.step for span in spans})
        raise ConfigError(f"--steps {asked}: the timeline has steps {known[0]} to {known[-1]}")
    return kept


def _write(path: str, text: str) -> None:
    try:
        replace_text(Path(path), text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    print(f"written: {path}", file=sys.stderr)


def _figures(found: Report) -> dict[str, Any]:
    pools = {name: {**asdict(use), "idle": use.idle} for name, use in found.pools.items()}
    path = {
        "seconds": sum(found.path_s.values()),
        "stages_s": found.path_s,
        "rest_s": found.rest_s,
    }
    head = {"seconds": found.seconds, "steps": found.steps, "lives": found.lives}
    return {**head, "pools": pools, "critical_path": path}


def _text(title: str, found: Report) -> str:
    lines = [title, f"{'pool':<14}{'lanes':>6}{'busy':>7}{'idle':>7}  of a lane's time"]
    for name, use in found.pools.items():
        whole = found.seconds or 1.0
        most = sorted(use.stages.items(), key=lambda one: -one[1])[:5]
        stages = ", ".join(f"{stage} {seconds / whole:.0%}" for stage, seconds in most)
        lines.append(f"{name:<14}{use.lanes:>6}{1 - use.idle:>7.0%}{use.idle:>7.0%}  {stages}")
    total = sum(found.path_s.values())
    by_stage = sorted(found.path_s.items(), key=lambda one: -one[1])
    stages = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in by_stage if _shows(seconds))
    lines.append(f"critical path: {total:.2f} of {found.seconds:.2f} s: {stages}")
    rest = sorted(found.rest_s.items(), key=lambda one: -one[1])
    if rest:
        shown = ((stage or "nothing", seconds) for stage, seconds in rest if _shows(seconds))
        words = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in shown)
        lines.append(f"beside it the controller: {words}")
    return "\n".join(lines)


def _shows(seconds: float) -> bool:
    """Whether it is more than nothing, as it is printed."""
    return seconds >= 0.005
