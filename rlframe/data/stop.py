"""Which tokens end a response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlframe.errors import ModelError

__all__ = ["stop_token_ids"]


def stop_token_ids(tokenizer: Any, *configs: Any) -> tuple[int, ...]:
    """Every end-of-sequence id of the tokenizer and of the given model and generation configs.

    A model may have several; one that equals the padding id still ends a response. Sorted, each
    once; empty when nothing names one. None is allowed among ``configs``. Raises ModelError.
    """
    found: set[int] = set()
    for source in (tokenizer, *configs):
        if source is not None:
            found.update(_ids(getattr(source, "eos_token_id", None), type(source).__name__))
    return tuple(sorted(found))


def _ids(value: Any, source: str) -> Iterable[int]:
    if value is None:
        return ()
    ids = list(value) if isinstance(value, list | tuple) else [value]
    for one in ids:
        if not isinstance(one, int) or isinstance(one, bool) or one < 0:
            raise ModelError(f"eos_token_id of {source} is {value!r}: it must be ids of tokens")
    return ids
