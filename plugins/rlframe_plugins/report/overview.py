"""How each run ended: the first thing that a reader wants to know."""

from __future__ import annotations

from collections.abc import Sequence

from rlframe.report import RunRecord, Section, table, text

__all__ = ["Overview"]

_HEAD = (
    "run", "status", "algo", "seed", "steps", "reward, first", "reward, last",
    "validation, before", "validation, after", "tokens/s", "time",
)  # fmt: skip


class Overview(Section):
    """One line a run, and what could not be read of it."""

    title, order = "Overview", 10
    style = "#overview td{white-space:nowrap}#overview ul{padding-left:1.2rem}"

    def html(self, runs: Sequence[RunRecord]) -> str:
        """See :class:`Section`."""
        lines = [_line(run) for run in runs]
        notes = "".join(
            f"<li><b>{text(run.name)}</b>: {text(note)}</li>" for run in runs for note in run.notes
        )
        told = f'<ul class="note">{notes}</ul>' if notes else ""
        return table(_HEAD, lines) + _events(runs) + told


def _line(run: RunRecord) -> list[str]:
    rewards: list[float | None] = [*run.series("critic/rewards/mean").values] or [None]
    held_out = run.series("val/reward/mean").values or run.series("val/loss").values
    summary = run.summary
    before, after = summary.get("val_before"), summary.get("val_after")
    if after is None and len(held_out) > 1:
        after = held_out[-1]
    return [
        run.name,
        run.status,
        run.option("algo", "name"),
        run.seed,
        f"{run.steps} of {run.option('steps') or '?'}",
        _number(rewards[0]),
        _number(rewards[-1]),
        _number(before if before is not None or not held_out else held_out[0]),
        _number(after),
        _number(summary.get("tokens_per_s"), 0),
        _duration(summary.get("wall_s")),
    ]


def _events(runs: Sequence[RunRecord]) -> str:
    """Skipped optimiser steps, restarts, replicas that were lost."""
    lines = []
    for run in runs:
        for name in ("skipped", "restarts", "replicas"):
            found = run.summary.get(name)
            for one in found if isinstance(found, list) else ():
                words = (
                    ", ".join(f"{k} {v}" for k, v in one.items()) if isinstance(one, dict) else one
                )
                lines.append([run.name, name, words])
    return "<h3>Events</h3>" + table(("run", "what", "when and why"), lines) if lines else ""


def _number(value: object, digits: int = 3) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "-"


def _duration(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "-"
    hours, minutes = int(seconds) // 3600, int(seconds) // 60 % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {int(seconds) % 60:02d} s" if minutes else f"{seconds:.1f} s"
