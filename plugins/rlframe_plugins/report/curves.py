"""Metrics over steps: those that matter first, runs beside each other, a band over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.resources import files

from rlframe.report import RunRecord, Section, Series, embed, text

__all__ = ["GROUPS", "Curves"]

_MOST_POINTS = 1500
"""Points of a curve; a longer one shows means of so many stretches."""
_DIGITS = 6

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Reward", ("critic/rewards/mean", "val/reward/mean", "val/loss", "reward/*/mean")),
    ("Signal", ("critic/rewards/zero_variance_groups", "collect/refused_groups")),
    ("Policy", ("actor/entropy", "actor/kl_loss", "actor/reward_kl", "actor/ppo_kl",
                "actor/pg_clipfrac")),
    ("Trainer and sampler", ("actor/rollout_logprob_gap", "actor/rollout_kl", "actor/rollout_ess",
                             "training/staleness/mean")),
    ("Lengths", ("response_length/mean", "response_length/max", "response_length/clip_ratio",
                 "val/response_length/mean")),
    ("Optimiser", ("actor/loss", "actor/pg_loss", "actor/nll", "actor/grad_norm", "actor/lr")),
    ("Critic", ("critic/vf_*", "critic/loss", "critic/grad_norm", "values/mean")),
    ("Environment", ("env/*", "val/env/*")),
    ("Speed", ("timing_s/step", "timing_s/gen", "timing_s/update_actor", "perf/throughput",
               "perf/mfu")),
)  # fmt: skip
"""Headings, and metrics (or patterns) below each; all others are under "Everything else"."""
_OPEN = 6
"""Groups that are open from the start."""


class Curves(Section):
    """A small chart a metric; one line a run, or a mean and a band over the seeds of a config."""

    title, order = "Curves", 30
    script = files("rlframe_plugins.report").joinpath("curves.js").read_text(encoding="utf-8")
    style = """
.legend{display:flex;flex-wrap:wrap;gap:.3rem .9rem}
.legend button{border:0;background:none;padding:.1rem 0;max-width:100%;overflow-wrap:anywhere}
.legend button[aria-pressed=false]{opacity:.35;text-decoration:line-through}
.legend i{display:inline-block;width:.9em;height:.9em;border-radius:3px;margin-right:.4em;
vertical-align:-.08em}
#curves details{margin:.6rem 0}#curves summary{font-weight:600;margin-bottom:.4rem}
"""

    def html(self, runs: Sequence[RunRecord]) -> str:
        """See :class:`Section`."""
        shown = [run for run in runs if run.rows]
        if not shown:
            return ""
        groups = _groups(shown)
        experiments = list(dict.fromkeys(run.experiment for run in shown))
        many = len(experiments) < len(shown)
        data = {
            "runs": [_run(run, experiments.index(run.experiment)) for run in shown],
            "groups": [{"title": title, "metrics": names} for title, names in groups],
        }
        boxes = "".join(
            f"<details{' open' if place < _OPEN else ''}><summary>{text(title)} ({len(names)})"
            f'</summary><div class="grid" data-group="{place}"></div></details>'
            for place, (title, names) in enumerate(groups)
        )
        return embed(data, "curves-data") + _controls(many) + boxes


def _controls(many: bool) -> str:
    band = (
        '<label><input type="checkbox" id="curves-band" checked>mean and band over seeds</label>'
        if many
        else ""
    )
    return (
        f'<div class="controls">{band}<label>smooth <input type="range" id="curves-smooth" min="0" '
        'max="0.95" step="0.05" value="0"></label><div class="legend" id="curves-legend"></div>'
        "</div>"
    )


def _run(run: RunRecord, experiment: int) -> dict[str, object]:
    series = {name: _thinned(run.series(name)) for name in run.metrics}
    return {
        "name": run.name,
        "experiment": experiment,
        "series": {name: [one.steps, one.values] for name, one in series.items() if len(one)},
    }


def _thinned(series: Series) -> Series:
    """At most so many points, of which each is the mean of a stretch; digits that can be seen."""
    width = math.ceil(len(series) / _MOST_POINTS)
    steps, values = series.steps, series.values
    if width > 1:
        starts = range(0, len(series), width)
        steps = [steps[min(start + width, len(steps)) - 1] for start in starts]
        values = [math.fsum(v) / len(v) for v in (values[s : s + width] for s in starts)]
    return Series(steps, [float(f"{value:.{_DIGITS}g}") for value in values])


def _groups(runs: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """Metrics that any run has, by heading, each once."""
    left = sorted({name for run in runs for name in run.metrics if len(run.series(name))})
    found = []
    for title, patterns in GROUPS:
        mine = [name for p in patterns for name in left if fnmatchcase(name, p)]
        mine = list(dict.fromkeys(mine))
        left = [name for name in left if name not in mine]
        if mine:
            found.append((title, mine))
    return [*found, ("Everything else", left)] if left else found
