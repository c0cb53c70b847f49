"""What both sides of the controller benchmark share: the columns, orders by pipe, what is counted.

Needs numpy and Ray only, so that a rival's environment can import it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PROMPT, RESPONSE = 512, 512
COLUMNS = {
    "input_ids": ("int64", PROMPT + RESPONSE),
    "attention_mask": ("int64", PROMPT + RESPONSE),
    "position_ids": ("int64", PROMPT + RESPONSE),
    "prompt_ids": ("int64", PROMPT),
    "response_ids": ("int64", RESPONSE),
    "rollout_logprobs": ("float32", RESPONSE),
}
"""Dtype and tokens a row; every row is full, so that padding costs nobody anything."""
BACK = {name: f"{name}_back" for name in COLUMNS}
ONE = "old_logprobs"
"""The column that comes out where one does."""
MODES = {"default": 2, "pull": 4}
CPUS = 8


def arrays(rows: int, start: int = 0) -> dict[str, Any]:
    """The six columns, (rows, width) each; distinct numbers, so that mixed rows would show."""
    out = {}
    for name, (dtype, width) in COLUMNS.items():
        count = np.arange(start * width, (start + rows) * width, dtype=dtype)
        out[name] = count.reshape(rows, width)
    return out


def nbytes(rows: int) -> int:
    """Bytes of the six columns."""
    return sum(rows * width * np.dtype(dtype).itemsize for dtype, width in COLUMNS.values())


def timed(times: int, part: Callable[[], Any]) -> list[float]:
    """Seconds of each call; what it returns is let go before the next."""
    found = []
    for _ in range(times):
        started = time.perf_counter()
        kept = part()
        found.append(time.perf_counter() - started)
        del kept
    return found


class Deserialised:
    """Bytes of every object that Ray deserialises in this process."""

    def __init__(self) -> None:
        from ray._private.serialization import SerializationContext

        self.bytes = 0
        inner = SerializationContext.deserialize_objects

        def counting(context: Any, objects: Any, *args: Any, **named: Any) -> Any:
            for data, _metadata, *_ in objects:
                self.bytes += 0 if data is None else memoryview(data).nbytes
            return inner(context, objects, *args, **named)

        SerializationContext.deserialize_objects = counting


class Peak:
    """The most memory that this process held while the block ran, over what it held before."""

    def __enter__(self) -> Peak:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = max(_status("VmHWM") - self._before, 0)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def serve(orders: dict[str, Callable[..., Any]]) -> None:
    """Obey one JSON object a line, ``{"order": name, ...}``, until the pipe is closed.

    Answers go to what stdout was; whatever else prints there is sent to stderr.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        answers.write(json.dumps(orders[asked.pop("order")](**asked)) + "\n")
        answers.flush()
