"""Range checks for the ``__post_init__`` of a Config; the message starts with the field's name."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["check_choice", "check_range"]


def check_range(
    config: Any,
    name: str,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raise ValueError unless ``low <= value <= high`` and ``above < value < below``.

    NaN and infinities are in no range. None passes: the field's type says whether it may be.
    """
    value = getattr(config, name)
    if value is None:
        return
    inside = (
        math.isfinite(value)
        and (low is None or value >= low)
        and (high is None or value <= high)
        and (above is None or value > above)
        and (below is None or value < below)
    )
    if not inside:
        bounds = {"at least": low, "above": above, "at most": high, "below": below}
        wanted = " and ".join(f"{k} {v:g}" for k, v in bounds.items() if v is not None)
        raise ValueError(f"{name} must be {wanted or 'a number'}, not {value!r}")


def check_choice(config: Any, name: str, *choices: str) -> None:
    """Raise ValueError unless the value is one of ``choices``."""
    value = getattr(config, name)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
