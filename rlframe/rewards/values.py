"""What a reward may return: a number, named parts, or None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["LARGEST", "NotAReward", "as_number", "as_parts", "shown", "told"]

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
    try:
        items = dict(value.items())
    except Exception as error:  # a mapping of the user's own may raise anything
        raise NotAReward(f"{_kind(value)}, which cannot be read: {told(error)}") from error
    if not items:
        raise NotAReward("an empty mapping; return None to abstain")
    return {
        f"{label}/{name}": _part(name, part) for name, part in items.items() if _named(name, part)
    }


def as_number(value: Any) -> float:
    """A finite float. Raises NotAReward."""
    try:
        number = _number(value)
    except OverflowError:
        number = math.inf
    except NotAReward as error:
        raise NotAReward(f"{_kind(value)} {error}, not a number") from error
    except Exception as error:  # attributes and __float__ of the user's own may raise anything
        raise NotAReward(f"{_kind(value)} {shown(value)}, not a number: {told(error)}") from error
    if not math.isfinite(number) or abs(number) > LARGEST:
        raise NotAReward(f"{shown(value)}, not a finite number (of 32 bits)")
    return number


def shown(value: Any, longest: int = 60) -> str:
    """``repr`` on one line, cut in its middle to ``longest`` characters; never raises."""
    try:
        text = " ".join(repr(value).splitlines())
    except Exception as error:  # __repr__ of the user's own may raise anything
        return f"<{_kind(value)} whose repr raised {_kind(error)}>"
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} ... {text[-longest // 2 :]}"


def told(error: BaseException) -> str:
    """Kind and message of an exception; never raises."""
    return f"{_kind(error)}: {str_of(error)}".removesuffix(": ")


def str_of(error: BaseException) -> str:
    """The message of an exception; never raises."""
    try:
        return str(error)
    except Exception as second:  # __str__ of the user's own may raise anything
        return f"<its message raised {_kind(second)}>"


def _named(name: Any, part: Any) -> bool:
    """Whether a part has a value. Raises NotAReward where its name is none."""
    if not isinstance(name, str):
        raise NotAReward(f"a mapping with the key {shown(name)}; parts are named by strings")
    if not name or not name.isprintable():
        raise NotAReward(f"a mapping with the key {shown(name)}; a part needs a printable name")
    return part is not None


def _part(name: str, part: Any) -> float:
    try:
        return as_number(part)
    except NotAReward as error:
        raise NotAReward(f"{error} (in its part {name!r})") from error


def _number(value: Any) -> float:
    """The only element as a float. Raises NotAReward, and what conversions raise."""
    shape = getattr(value, "shape", ())
    if isinstance(shape, tuple) and math.prod(shape) != 1:
        raise NotAReward("of several elements" if math.prod(shape) else "without elements")
    times = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")
    masked = bool(getattr(value, "mask", False))
    bare = value.item() if callable(getattr(value, "item", None)) else value
    text = isinstance(bare, str | bytes)
    number = hasattr(bare, "__float__") or hasattr(bare, "__index__")
    if times or masked or text or not number:
        raise NotAReward(shown(value))
    return float(bare)


def _kind(value: Any) -> str:
    return type(value).__name__
