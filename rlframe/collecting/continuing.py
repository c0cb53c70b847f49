"""Generations that go on elsewhere or later: what is left of a request after some of its tokens."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from rlframe.requests import Request

__all__ = ["rest_of"]


def rest_of(request: Request, token_ids: Sequence[int], deadline_s: float | None) -> Request | None:
    """What is left of a request after ``token_ids``, to be done by ``deadline_s``; None: nothing.

    Its seed is another one, since the tokens so far have used the first.
    """
    count, sampling = len(token_ids), request.sampling
    if count == 0:
        return dataclasses.replace(request, deadline_s=deadline_s)
    if count >= sampling.max_new_tokens:
        return None
    sampling = dataclasses.replace(
        sampling,
        max_new_tokens=sampling.max_new_tokens - count,
        min_new_tokens=max(sampling.min_new_tokens - count, 0),
        seed=None if sampling.seed is None else _later_seed(sampling.seed, count),
    )
    prompt = (*request.prompt_ids, *token_ids)
    return dataclasses.replace(request, prompt_ids=prompt, sampling=sampling, deadline_s=deadline_s)


def _later_seed(seed: int, count: int) -> int:
    digest = hashlib.blake2b(f"rest/{seed}/{count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
