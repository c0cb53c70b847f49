"""Messages between a worker and its engine's host process: a length, then a pickle.

Both ends are ours, of one user, over a socket pair that nobody else can open.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["HEAD", "Job", "framed", "length_of", "opened"]

HEAD = 8
"""Bytes of a message's length, before it."""


@dataclass(frozen=True)
class Job:
    """One generation: exact tokens, the engine's own parameters, and what the host looks after.

    ``limit`` is the most tokens of the response, where the host has to know. ``stop`` are strings
    that end it once ``min_new_tokens`` tokens are there.
    """

    prompt_ids: tuple[int, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    min_new_tokens: int = 0
    deadline_s: float | None = None
    limit: int = 0


def framed(message: tuple[Any, ...]) -> bytes:
    """A message as bytes."""
    body = pickle.dumps(message)
    return len(body).to_bytes(HEAD, "little") + body


def length_of(head: bytes) -> int:
    """Bytes of the message that follows."""
    return int.from_bytes(head, "little")


def opened(body: bytes) -> Any:
    """A message from its bytes."""
    return pickle.loads(body)
