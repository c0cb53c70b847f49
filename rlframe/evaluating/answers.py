"""The answer in a response, for votes among responses: what was boxed, else the last number."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from rlframe.errors import ConfigError

__all__ = ["answer_of", "answer_pattern"]

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_BOXED = "\\boxed{"


def answer_pattern(text: str | None) -> re.Pattern[str] | None:
    """A user's pattern, compiled. Raises ConfigError."""
    if text is None:
        return None
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"--answer {text!r} is no regular expression: {error}") from error


def answer_of(response: str, pattern: re.Pattern[str] | None = None) -> str:
    """The answer that a response votes for; equal answers are equal texts.

    With a pattern the last match (its first group where it has one); else the last ``\\boxed{..}``,
    what follows the last ``####``, the last number, or the whole response. Numbers lose thousands
    separators and trailing zeros.
    """
    if pattern is not None:
        found = list(pattern.finditer(response))
        if not found:
            return ""
        return _plain(found[-1].group(1 if pattern.groups else 0) or "")
    boxed = _boxed(response)
    if boxed is not None:
        return _plain(boxed)
    _, mark, tail = response.rpartition("####")
    if mark:
        return _plain(tail)
    numbers = _NUMBER.findall(response)
    return _plain(numbers[-1] if numbers else response)


def _boxed(response: str) -> str | None:
    start = response.rfind(_BOXED)
    if start < 0:
        return None
    depth, begin = 1, start + len(_BOXED)
    for position in range(begin, len(response)):
        depth += {"{": 1, "}": -1}.get(response[position], 0)
        if depth == 0:
            return response[begin:position]
    return response[begin:]


def _plain(text: str) -> str:
    text = " ".join(text.split())
    if not _NUMBER.fullmatch(text):
        return text
    try:
        number = Decimal(text.replace(",", ""))
    except InvalidOperation:
        return text
    return f"{number.normalize():f}" if number else "0"
