"""What is used of the package ``sglang``: its in-process engine, as of 0.5.22 and later.

``Engine.tokenizer_manager`` has the asynchronous form of what the engine itself offers blocking,
and pause, continue and abort besides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlframe.errors import RolloutError

__all__ = ["LEAST", "Api", "loaded"]

LEAST = (0, 5, 22)
"""The first version that opens and closes weight updates, and gives log-probabilities of masked
draws and the weight version of each token."""


@dataclass(frozen=True)
class Api:
    """``engine`` makes one of its arguments; ``requests`` is the module of what it is asked."""

    engine: Callable[..., Any]
    requests: Any
    serialized: Callable[[Any], bytes]
    """Tensors for one of its workers; of CPU memory it holds shared memory alone."""


def loaded() -> Api:
    """Import it. Raises RolloutError where it is missing or too old."""
    again = "pip install --upgrade 'rlframe[sglang]'"
    try:
        from sglang.version import __version__ as found
    except ImportError as error:
        raise RolloutError(f"the package 'sglang' cannot be imported ({error}): {again}") from error
    if _numbers(found) < LEAST:
        least = ".".join(map(str, LEAST))
        raise RolloutError(f"sglang {found} is too old, {least} or later is needed: {again}")
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers import io_struct
    from sglang.srt.utils import MultiprocessingSerializer

    return Api(Engine, io_struct, MultiprocessingSerializer.serialize)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 5, 22) of "0.5.22.post1"."""
    found = []
    for part in version.split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)
