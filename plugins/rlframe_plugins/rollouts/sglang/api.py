"""What is used of the package ``sglang``: its in-process engine, as of 0.5.22 and later.

``Engine.tokenizer_manager`` has the asynchronous form of what the engine itself offers blocking,
and pause, continue and abort besides. 0.5.22 is the first version that opens and closes weight
updates, and gives log-probabilities of masked draws and the weight version of each token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlframe.errors import RolloutError

__all__ = ["Api", "loaded"]


@dataclass(frozen=True)
class Api:
    """``engine`` makes one of its arguments; ``requests`` is the module of what it is asked."""

    engine: Callable[..., Any]
    requests: Any
    serialized: Callable[[Any], bytes]
    """Tensors for one of its workers; of CPU memory it holds shared memory alone."""


def loaded() -> Api:
    """Import it. Raises RolloutError where that fails; its version is that of the extra."""
    try:
        from sglang.srt.entrypoints.engine import Engine
        from sglang.srt.managers import io_struct
        from sglang.srt.utils import MultiprocessingSerializer
    except ImportError as error:
        again = "pip install --upgrade 'rlframe[sglang]'"
        raise RolloutError(f"the package 'sglang' cannot be imported ({error}): {again}") from error
    return Api(Engine, io_struct, MultiprocessingSerializer.serialize)
