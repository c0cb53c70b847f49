"""Learning curves of every online method on the shipped model and arithmetic task.

``python benchmarks/learning.py [--json] [--seeds N] [--steps N] [--only NAME ...]``. Seeds of a
method run one after another; mean and spread (standard deviation) of the reward at each step go to
the JSON, and one SVG a method, with all of them in one more, to ``benchmarks/results/learning``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from common import ROOT, main, side, target

GAIN = 0.2
"""Validation reward that a method must gain, of at most 0.46 on this task."""
PLOTS = ROOT / "benchmarks" / "results" / "learning"
WIDTH, HEIGHT, MARGIN = 480, 280, 36
COLOURS = ("#1b6ca8", "#c8553d", "#2a9d5c", "#8e5bb5", "#b8860b", "#3b8ea5", "#a83b6c", "#6b6b6b")


def online_methods() -> list[str]:
    """Registered methods that sample and need no model beside the policy's own."""
    from rlframe.host.host import current_host
    from rlframe.host.resolve import resolve

    host, names = current_host(), []
    for name in host.components("algorithm"):
        made = resolve(host, "algorithm", name).value
        alone = all(
            role.init_from == "policy" or role.name == "policy"
            for role in made(made.Config()).roles()
        )
        if alone and not made.offline:
            names.append(name)
    return sorted(names)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these methods instead of all")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    methods, targets = {}, []
    threads = os.cpu_count() or 1
    for name in arguments.only or online_methods():
        with tempfile.TemporaryDirectory() as folder:
            runs = [
                side(
                    sys.executable,
                    "learning_run.py",
                    name,
                    str(seed),
                    str(arguments.steps),
                    folder,
                    threads=threads,
                )
                for seed in range(arguments.seeds)
            ]
        methods[name] = summary(runs)
        gained = methods[name]["val_after"]["mean"] - methods[name]["val_before"]["mean"]
        targets.append(target(f"{name}: validation reward gained", gained, GAIN))
    PLOTS.mkdir(parents=True, exist_ok=True)
    for name, found in methods.items():
        (PLOTS / f"{name}.svg").write_text(plot({name: found["reward"]}), encoding="utf-8")
    every = {name: found["reward"] for name, found in methods.items()}
    (PLOTS / "all.svg").write_text(plot(every), encoding="utf-8")
    folder = str(PLOTS.relative_to(ROOT))
    return {"steps": arguments.steps, "methods": methods, "plots": folder}, targets


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds, of each step and of both validations."""
    steps = list(zip(*(run["curve"] for run in runs), strict=True))
    return {
        "seeds": len(runs),
        "reward": {"mean": [_mean(s) for s in steps], "spread": [_spread(s) for s in steps]},
        **{
            key: {"mean": _mean([r[key] for r in runs]), "spread": _spread([r[key] for r in runs])}
            for key in ("val_before", "val_after")
        },
    }


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 4)


def _spread(values: Sequence[float]) -> float:
    return round(statistics.stdev(values), 4) if len(values) > 1 else 0.0


def plot(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Mean reward by step with a band of one standard deviation, as SVG."""
    longest = max(len(curve["mean"]) for curve in curves.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 130}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="10">',
        f'<rect width="{WIDTH + 130}" height="{HEIGHT}" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        parts.append(
            f'<path d="M{MARGIN} {y}H{WIDTH - 8}" stroke="#ddd"/>'
            f'<text x="6" y="{y + 3}">{tenth / 10:.1f}</text>'
        )
    parts.append(f'<text x="{WIDTH // 2}" y="{HEIGHT - 6}">step (1 to {longest})</text>')
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        both = list(zip(curve["mean"], curve["spread"], strict=True))
        band = _points([m + s for m, s in both], longest)
        band += _points([m - s for m, s in both], longest)[::-1]
        dashes = f' stroke-dasharray="{2 + 2 * (number // len(COLOURS))} 2"' * (
            number >= len(COLOURS)
        )
        if len(curves) == 1:
            parts.append(f'<polygon points="{" ".join(band)}" fill="{colour}" opacity="0.18"/>')
        line = " ".join(_points(curve["mean"], longest))
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>'
            f'<text x="{WIDTH + 4}" y="{14 + 12 * number}" fill="{colour}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _points(values: Sequence[float], longest: int) -> list[str]:
    room = WIDTH - MARGIN - 8
    return [f"{MARGIN + room * i / max(longest - 1, 1):.1f},{_y(v)}" for i, v in enumerate(values)]


def _y(value: float) -> float:
    return round(HEIGHT - MARGIN + (2 * MARGIN - 24 - HEIGHT) * min(max(value, 0.0), 1.0), 1)


if __name__ == "__main__":
    main(__doc__ or "", measure, options, quick={"seeds": 1, "steps": 2})
