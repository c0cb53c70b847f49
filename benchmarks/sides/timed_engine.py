"""A model engine that knows where its worker's time goes; ``model.engine`` of a benchmark."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import parts
from torch import distributed as dist

from rlframe.calling.protocol import ONE_TO_ALL, protocol
from rlframe.interfaces.model import EngineSpec
from rlframe_strategies.engine import CausalLMEngine

COLLECTIVES = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "broadcast",
)
WRAPPED = (
    *parts.WRAPPED,
    (CausalLMEngine, "hand_over", "hand over"),
    (CausalLMEngine, "update", "update's rest"),
    *((dist, name, "collectives") for name in COLLECTIVES),
)
"""Those of one process, and what several have besides."""


class TimedEngine(CausalLMEngine):
    """Wraps functions of its process once, and adds up the seconds in each."""

    def setup(self, spec: EngineSpec) -> None:
        """See the base."""
        super().setup(spec)
        if not _spent:
            for owner, name, part in WRAPPED:
                setattr(owner, name, _timed(getattr(owner, name), part))

    @protocol(ONE_TO_ALL)
    def spent(self) -> dict[str, Any]:
        """Seconds by part since the last call, of the clock and of the CPU; peak memory, GB."""
        found, worked, cpu = dict(_spent), dict(_worked), time.process_time()
        for seconds in (_spent, _worked):
            seconds.update(dict.fromkeys(seconds, 0.0))
        before, _cpu[:] = _cpu[0], [cpu]
        return {
            "parts_s": found,
            "parts_cpu_s": worked | {"all": cpu - before},
            "peak_gb": parts.status_gb("VmHWM"),
        }


_spent: dict[str, float] = {}
_worked: dict[str, float] = {}
_cpu = [0.0]
_local = threading.local()


def _timed(function: Any, part: str) -> Any:
    _spent[part] = _worked[part] = 0.0

    @functools.wraps(function)
    def timed(*arguments: Any, **options: Any) -> Any:
        inside = _local.__dict__.setdefault("inside", [])
        inside.append((0.0, 0.0))
        start = time.perf_counter(), time.thread_time()
        try:
            return function(*arguments, **options)
        finally:
            spent, worked = time.perf_counter() - start[0], time.thread_time() - start[1]
            others = inside.pop()
            _spent[part] += spent - others[0]
            _worked[part] += worked - others[1]
            if inside:
                inside[-1] = (inside[-1][0] + spent, inside[-1][1] + worked)

    return timed
