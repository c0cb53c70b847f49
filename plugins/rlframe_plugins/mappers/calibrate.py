"""Measure this machine, or take a real run's timings, and write both as catalogue entries."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rlframe.errors import ConfigError
from rlframe_plugins.mappers.stages import stage_seconds

__all__ = ["calibrate", "calibrate_by_run", "measured_stages"]

_ROUNDS = 7


def _best(action: Callable[[], object], clock: Callable[[], float], rounds: int = _ROUNDS) -> float:
    """Least seconds of several rounds, the first one left out."""
    action()
    taken = []
    for _ in range(rounds):
        started = clock()
        action()
        taken.append(clock() - started)
    return min(taken)


def _rates(device: str) -> dict[str, float]:
    """FLOP/s of a large and of small products, B/s of memory, seconds of a launch."""
    import torch

    half = device != "cpu"
    dtype = torch.bfloat16 if half else torch.float32
    wide = 4096 if half else 1024
    # Seconds of the core on a CPU, so that what else runs there does not count.
    clock = time.perf_counter if half else time.process_time

    def timed(action: Callable[[], object]) -> float:
        def whole() -> None:
            action()
            if half:
                torch.cuda.synchronize()

        return _best(whole, clock)

    a = torch.randn(wide, wide, device=device, dtype=dtype)
    rates = {}
    for rows in (1, 8, 32, 128, wide):
        b = torch.randn(rows, wide, device=device, dtype=dtype)
        rates[f"gemm_{rows}"] = 2 * rows * wide * wide / timed(partial(torch.matmul, b, a))
    source = torch.ones((1 << 28) // 4 if half else (1 << 26) // 4, device=device)
    target = torch.empty_like(source)
    rates["memory"] = 2 * source.numel() * 4 / timed(lambda: target.copy_(source))
    host = torch.ones((1 << 26) // 4)
    away = torch.empty(host.shape, device=device)
    rates["host"] = host.numel() * 4 / timed(lambda: away.copy_(host))
    one = torch.ones(1, device=device)
    rates["launch"] = timed(lambda: [one.add_(1) for _ in range(200)]) / 200
    return rates


def _host_gib(device: str) -> float:
    """This machine's memory over its GPUs, or over its cores."""
    import torch

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    count = os.cpu_count() if device == "cpu" else torch.cuda.device_count()
    return total / (count or 1)


def _memory_gib(device: str) -> float:
    if device != "cpu":
        import torch

        return float(torch.cuda.get_device_properties(0).total_memory) / 2**30
    return _host_gib(device)


def _row(value: float, basis: str, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "basis": basis, "source": source}


def calibrate() -> str:
    """Measure a core (or the first GPU) of this machine; returns the catalogue as YAML.

    A device is one process with one compute thread on a CPU. Small-batch efficiency is kept in the
    entry's source; the simulators derive it from rate of products and bandwidth of memory.
    """
    import torch
    import yaml

    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates = _rates(device)
    finally:
        torch.set_num_threads(threads)
    large = max(value for name, value in rates.items() if name.startswith("gemm"))
    small = ", ".join(
        f"{name[5:]} rows {value / large:.2f}" for name, value in rates.items() if "gemm" in name
    )
    entry = {
        "memory_gib": round(_memory_gib(device), 2),
        "host_gib": round(_host_gib(device), 2),
        "tflops": float(f"{large / 1e12:.4g}"),
        "memory_gbs": float(f"{rates['memory'] / 1e9:.4g}"),
        "link_gbs": float(f"{rates['host'] / 2e9:.4g}"),
        "host_gbs": float(f"{rates['host'] / 1e9:.4g}"),
        "network": "eth-10",
        "weight_bytes": 4 if device == "cpu" else 2,
        "source": f"measured by rlframe map --calibrate; share of the best rate: {small}",
    }
    measured = "rlframe map --calibrate: "
    whole = _row(1.0, "measured", measured + "the device's entry is already what is reached")
    launch = _row(rates["launch"], "measured", measured + "one add in a queue of 200")
    constants = {name: dict(whole) for name in ("gemm_share", "memory_share", "host_share")}
    constants |= {"launch_s": launch}
    if device == "cpu":
        constants |= {
            "graph_launch_s": dict(launch),
            "context_gib": _row(0.5, "assumed", "interpreter and libraries of a worker"),
        }
    return str(yaml.safe_dump({"devices": {device: entry}, "constants": constants}, width=96))


def measured_stages(metrics: Path) -> dict[str, float]:
    """Median seconds by stage of the steps in a ``metrics.jsonl``, the first step left out.

    Raises ``ConfigError`` where there are none.
    """
    try:
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"timings of a run: {error}") from None
    steps = [line for line in lines if "timing_s/step" in line]
    if not steps:
        raise ConfigError(f"{metrics} holds no timing_s/step: is it the metrics.jsonl of a run?")
    rows = [stage_seconds(step) for step in (steps[1:] or steps)]
    return {stage: statistics.median(row[stage] for row in rows) for stage in rows[0]}


def calibrate_by_run(run: Path, devices: str | None) -> str:
    """Scale each stage so that the run's own config is predicted as it was measured.

    ``devices`` is the catalogue that the run's machine has. Returns a catalogue as YAML: it holds
    what ``devices`` holds and the four factors.
    """
    import yaml

    from rlframe_plugins.mappers.predict import predict_run

    measured = measured_stages(run / "metrics.jsonl")
    predicted = predict_run(run, devices)
    kept = yaml.safe_load(Path(devices).read_text(encoding="utf-8")) if devices else {}
    constants = dict(kept.get("constants", {}))
    for stage, seconds in measured.items():
        if seconds > 0 and predicted.get(stage, 0.0) > 0:
            old = float(constants.get(f"scale_{stage}", {"value": 1.0})["value"])
            source = f"run {run.name}: {seconds:.4g} s measured"
            factor = old * seconds / predicted[stage]
            constants[f"scale_{stage}"] = _row(factor, "measured", source)
    return str(yaml.safe_dump({**kept, "constants": constants}, width=96))
