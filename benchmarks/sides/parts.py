"""Seconds, products and memory of the parts of a step, taken by wrapping rlframe's functions."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from rlframe.interfaces.loop import Callback
from rlframe_plugins.rollouts.torch import runner
from rlframe_plugins.rollouts.torch.decoder import Decoder
from rlframe_strategies import module
from rlframe_strategies.base import TorchStrategy
from rlframe_strategies.module import LanguageModel

WRAPPED = (
    (Decoder, "prefill", "prefill"),
    (Decoder, "decode", "decode"),
    (Decoder, "logits", "decode"),
    (runner, "sample", "sampling"),
    (LanguageModel, "forward", "forward"),
    (module, "token_logprobs", "logprobs"),
    (torch.autograd, "backward", "backward"),
    (TorchStrategy, "step", "optimiser"),
)
"""Owner, function, part. A part inside another one is not counted in that one."""
PARTS = tuple(dict.fromkeys(part for *_, part in WRAPPED))
GEMM = 1024


class Parts(Callback):
    """A callback that keeps one entry a step: seconds by part, tokens fed, response tokens.

    ``profiled`` also notes each part's peak memory, and what PyTorch did in the last step.
    ``Parts.made`` is the one of the run, which makes its own.
    """

    made: ClassVar[Parts]

    @dataclass(frozen=True)
    class Config:
        """Steps of the run, the last of which is looked at closely where ``profiled``."""

        steps: int
        profiled: bool

    def __init__(self, config: Parts.Config) -> None:
        super().__init__(config)
        self.steps: list[dict[str, float]] = []
        self.cpu_s: list[float] = []
        self.fed: list[tuple[int, int]] = []
        self.peaks: dict[str, float] = {}
        self.operators: list[dict[str, Any]] = []
        self.start_gb = 0.0
        self._last, self._profiled = config.steps, config.profiled
        self._open: list[list[Any]] = []
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._fed = [0, 0]
        self._profiler: Any = None

    def on_fit_start(self, orchestrator: Any) -> None:
        Parts.made = self
        for owner, name, part in WRAPPED:
            setattr(owner, name, self._timed(getattr(owner, name), part))
        self.start_gb = resident_gb()

    def on_step_start(self, orchestrator: Any) -> None:
        self._spent, self._fed = dict.fromkeys(PARTS, 0.0), [0, 0]
        self._cpu_s = time.process_time()
        if self._profiled and orchestrator.step + 1 == self._last:
            self._profiler = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU]
            )
            self._profiler.__enter__()

    def on_step_end(self, orchestrator: Any, metrics: Any) -> None:
        self.cpu_s.append(time.process_time() - self._cpu_s)
        spent = dict(self._spent)
        spent["other"] = metrics["timing_s/step"] - sum(spent.values())
        self.steps.append(spent)
        self.fed.append((self._fed[0], self._fed[1]))
        if self._profiler is not None:
            self._profiler.__exit__(None, None, None)
            self.operators = operators(self._profiler)

    def _timed(self, function: Any, part: str) -> Any:
        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            self._enter(part)
            try:
                if part == "forward":
                    self._fed[0] += arguments[1].input_ids.numel()
                    self._fed[1] += arguments[1].take.numel()
                return function(*arguments, **options)
            finally:
                self._leave()

        return timed

    def _enter(self, part: str) -> None:
        self._note_peak()
        self._open.append([part, time.perf_counter(), 0.0])

    def _leave(self) -> None:
        self._note_peak()
        part, start, inside = self._open.pop()
        spent = time.perf_counter() - start
        self._spent[part] += spent - inside
        if self._open:
            self._open[-1][2] += spent

    def _note_peak(self) -> None:
        """Give the peak since the last note to the part that runs, and start a new one."""
        if not self._profiled or self._profiler is not None:
            return  # the profiler needs memory itself
        part = self._open[-1][0] if self._open else "other"
        self.peaks[part] = max(self.peaks.get(part, 0.0), status_gb("VmHWM"))
        Path("/proc/self/clear_refs").write_text("5")


def operators(profiler: Any, most: int = 12) -> list[dict[str, Any]]:
    """The operators that took longest by themselves: share of all, seconds, calls."""
    rows = profiler.key_averages()
    total = sum(row.self_cpu_time_total for row in rows)
    rows = sorted(rows, key=lambda row: -row.self_cpu_time_total)[:most]
    return [
        {
            "operator": row.key,
            "share": round(row.self_cpu_time_total / total, 3),
            "seconds": round(row.self_cpu_time_total / 1e6, 3),
            "calls": row.count,
        }
        for row in rows
    ]


def products(config: Any, rows: int, prompts: int, prompt: int, new: int) -> Any:
    """Floating-point operations in matrix products of each part, a function of what was fed.

    Attention's own products are left out; the backward pass makes the logits once more.
    """
    width, inner = config.hidden_size, config.intermediate_size
    heads = width // config.num_attention_heads * config.num_key_value_heads
    layers = config.num_hidden_layers * (2 * width * width + 2 * width * heads + 3 * width * inner)
    head = config.vocab_size * width

    def of(fed: int, predicted: int) -> dict[str, float]:
        return {
            "prefill": 2.0 * layers * prompts * prompt,
            "decode": 2.0 * (layers * rows * (new - 1) + head * rows * new),
            "forward": 2.0 * layers * fed,
            "logprobs": 2.0 * head * predicted,
            "backward": 4.0 * layers * fed + 6.0 * head * predicted,
        }

    return of


def gemm_gflops(rounds: int = 10) -> float:
    """The most that a float32 matrix product reaches in this process, now."""
    left, right = torch.randn(GEMM, GEMM), torch.randn(GEMM, GEMM)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - start)
    return 2 * GEMM**3 / best / 1e9


def resident_gb() -> float:
    """Memory that this process holds now, GB (2**30 bytes)."""
    return status_gb("VmRSS")


def status_gb(name: str) -> float:
    """A size of ``/proc/self/status``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 2**20
    raise SystemExit(f"/proc/self/status has no {name}: run this benchmark on Linux")
