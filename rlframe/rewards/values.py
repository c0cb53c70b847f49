"""What a reward may return: a number, named parts, or None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["LARGEST", "NotAReward", "as_number", "as_parts"]

LARGEST = (2 - 2**-23) * 2.0**127
"""The largest float32: batches hold rewards in that type."""


class NotAReward(ValueError):
    """What a reward returned instead of one: completes the sentence "it returned ..."."""


def as_parts(value: Any, label: str) -> dict[str, float]:
    """A returned value as named parts: empty for None, ``{label: x}`` for a number.

    A mapping gives ``label/part`` for each; a part of None abstains. Numbers of numpy and torch and
    bools are numbers. Raises NotAReward for anything else, NaN and infinity included.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return {label: as_number(value)}
    if not value:
        raise NotAReward("an empty mapping; return None to abstain")
    parts: dict[str, float] = {}
    for name, part in value.items():
        if not isinstance(name, str):
            raise NotAReward(f"a mapping with the key {name!r}; parts are named by strings")
        if part is not None:
            parts[f"{label}/{name}"] = as_number(part)
    return parts


def as_number(value: Any) -> float:
    """A finite float. Raises NotAReward."""
    bare = value
    if hasattr(value, "item") and callable(value.item):
        try:
            bare = value.item()
        except (ValueError, RuntimeError) as error:
            raise NotAReward(f"{_kind(value)} of several elements, not a number") from error
    if isinstance(bare, str | bytes) or not (
        hasattr(bare, "__float__") or hasattr(bare, "__index__")
    ):
        raise NotAReward(f"{_kind(value)} {_short(value)}, not a number")
    try:
        number = float(bare)
    except OverflowError:
        number = math.inf
    except (ValueError, TypeError) as error:
        raise NotAReward(f"{_kind(value)} {_short(value)}, not a number: {error}") from error
    if not math.isfinite(number) or abs(number) > LARGEST:
        raise NotAReward(f"{_short(value)}, not a finite number (of 32 bits)")
    return number


def _kind(value: Any) -> str:
    return type(value).__name__


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
