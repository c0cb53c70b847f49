"""What the terminal view remembers of a run, and how it words figures."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SHOWN", "History", "brief", "duration"]

SHOWN = (
    ("reward", ("critic/rewards/mean",)),
    ("loss", ("actor/nll", "actor/loss", "actor/pg_loss")),
    ("kl", ("actor/kl_loss", "actor/ppo_kl")),
    ("entropy", ("actor/entropy",)),
    ("length", ("response_length/mean",)),
    ("grad norm", ("actor/grad_norm",)),
    ("tok/s", ("perf/throughput",)),
)
"""Words of the view, and the metrics of which the first that is there is shown."""

_VALIDATION = ("val/reward/mean", "val/loss")
_RECENT = 10


@dataclass
class History:
    """Series of the curve and of validations; ``seconds`` are those of the latest steps."""

    total_steps: int
    step: int = 0
    curve_name: str = ""
    curve: list[float] = field(default_factory=list)
    validations: list[tuple[int, str, float]] = field(default_factory=list)
    latest: dict[str, float] = field(default_factory=dict)
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Take a step's figures; False when they are only a validation's."""
        for name in _VALIDATION:
            if name in metrics:
                self.validations.append((step, name, float(metrics[name])))
                break
        if all(name.startswith("val/") for name in metrics):
            return False
        self.step = step
        self.latest = {name: float(value) for name, value in metrics.items()}
        if "timing_s/step" in metrics:
            self.seconds.append(float(metrics["timing_s/step"]))
        for word in ("reward", "loss"):
            value = self.value(word)
            if value is not None and self.curve_name in ("", word):
                self.curve_name = word
                self.curve.append(value)
                break
        return True

    def read(self, path: Path, until: int) -> None:
        """Take the steps up to ``until`` from a metrics file, where there is one."""
        if not path.is_file():
            return
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                step = int(entry.pop("step"))
            except (ValueError, KeyError, AttributeError, TypeError):
                continue
            if step <= until:
                self.add(step, {k: v for k, v in entry.items() if isinstance(v, int | float)})
        self.seconds.clear()

    def value(self, word: str) -> float | None:
        """A figure of the latest step by its word."""
        for name in dict(SHOWN)[word]:
            if name in self.latest:
                return self.latest[name]
        return None

    def figures(self) -> list[tuple[str, str]]:
        """Words and values of the latest step; the loss only where there is no reward."""
        found = [(word, self.value(word)) for word, _ in SHOWN]
        with_reward = dict(found)["reward"] is not None
        return [
            (word, brief(value))
            for word, value in found
            if value is not None and not (word == "loss" and with_reward)
        ]

    def stages(self) -> list[tuple[str, float]]:
        """Seconds by stage of the latest step, the longest first."""
        prefix = "timing_s/"
        times = [
            (name.removeprefix(prefix), value)
            for name, value in self.latest.items()
            if name.startswith(prefix) and name != "timing_s/step"
        ]
        return sorted(times, key=lambda item: -item[1])

    def eta_s(self) -> float | None:
        """Seconds to the last step, at the pace of the latest ones."""
        if not self.seconds:
            return None
        return (self.total_steps - self.step) * sum(self.seconds) / len(self.seconds)

    def validation_line(self) -> str:
        """``val reward 0.41 -> 0.93``, or an empty text."""
        if not self.validations:
            return ""
        name = "val " + self.validations[0][1].split("/")[1]
        first, last = self.validations[0], self.validations[-1]
        if len(self.validations) == 1:
            return f"{name} {first[2]:.4g} at step {first[0]}"
        return f"{name} {first[2]:.4g} -> {last[2]:.4g} (step {first[0]} -> {last[0]})"


def brief(value: float) -> str:
    """A number in about five characters."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 10_000_000:
        return f"{value:.1e}"
    if abs(value) >= 10_000:
        return f"{value / 1000:.1f}k"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


def duration(seconds: float) -> str:
    """``0.4s``, ``12s``, ``3m05s``, ``2h10m``."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
