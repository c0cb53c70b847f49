"""What every engine does alike: checks of a request, seeds, and when a response ends."""

from __future__ import annotations

import hashlib
import os.path
from collections.abc import Iterable
from typing import Any

from rlframe.errors import ModelError, RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request, Sampling

__all__ = ["StopStrings", "check_request", "end_ids", "load_config", "load_tokenizer", "seed_of"]


def load_config(spec: RolloutSpec) -> Any:
    """The transformers config of ``spec.path``. Raises ModelError."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(spec.path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"no model config at '{spec.path}': {error}") from error


def load_tokenizer(spec: RolloutSpec) -> Any:
    """The tokenizer of ``spec.path``. Raises ModelError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(spec.path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"no tokenizer at '{spec.path}': {error}") from error


def end_ids(spec: RolloutSpec, config: Any) -> tuple[int, ...]:
    """The model's own end tokens: of its generation config, its config and its tokenizer."""
    from transformers import GenerationConfig

    found: set[int] = set(_ids(config.eos_token_id))
    if os.path.isfile(os.path.join(spec.path, "generation_config.json")):
        found |= set(_ids(GenerationConfig.from_pretrained(spec.path).eos_token_id))
    if os.path.isfile(os.path.join(spec.path, "tokenizer_config.json")):
        found |= set(_ids(load_tokenizer(spec).eos_token_id))
    return tuple(sorted(found))


def check_request(request: Request, vocab: int, max_positions: int) -> None:
    """Raise RolloutError for a prompt or sampling that cannot be served."""
    prompt, sampling = request.prompt_ids, request.sampling
    who = f"request '{request.request_id}' (group {request.group_id})"
    if not prompt:
        raise RolloutError(f"{who} has an empty prompt: it needs at least one token")
    if min(prompt) < 0 or max(prompt) >= vocab:
        raise RolloutError(
            f"{who} holds token id {min(prompt) if min(prompt) < 0 else max(prompt)}, outside of "
            f"the model's 0 to {vocab - 1}: is the tokenizer of another model?"
        )
    if len(prompt) >= max_positions:
        raise RolloutError(
            f"{who} has a prompt of {len(prompt)} tokens, but the model has {max_positions} "
            "positions, of which the response needs at least one: lower data.max_prompt_tokens"
        )
    wrong = _wrong(sampling)
    if wrong:
        raise RolloutError(f"{who}: {wrong}")


def _wrong(sampling: Sampling) -> str:
    ranges = (
        ("temperature", 0 <= sampling.temperature <= 100),
        ("top_p", 0 < sampling.top_p <= 1),
        ("top_k", sampling.top_k >= 0),
        ("min_p", 0 <= sampling.min_p <= 1),
        ("max_new_tokens", sampling.max_new_tokens >= 1),
        ("min_new_tokens", 0 <= sampling.min_new_tokens <= sampling.max_new_tokens),
        ("stop", "" not in sampling.stop),
    )
    bad = [name for name, fine in ranges if not fine]
    return f"{bad[0]}={getattr(sampling, bad[0])!r} is out of range" if bad else ""


def seed_of(request: Request, run_seed: int, count: int) -> int:
    """The 64-bit seed of a request's own stream.

    Without ``Sampling.seed`` it depends on the run's seed, group and episode, so a resumed run
    draws the same; requests without an episode take ``count``, the number of requests before. The
    prompt's length goes in too: the turns of an episode, which share a seed, differ in it.
    """
    own = request.sampling.seed
    if own is not None:
        parts: tuple[object, ...] = ("own", own, len(request.prompt_ids))
    elif request.episode_id != -1:
        parts = (run_seed, request.group_id, request.episode_id, len(request.prompt_ids))
    else:
        parts = ("count", run_seed, count)
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


class StopStrings:
    """Looks for stop strings in the text of a response as its tokens come.

    A string counts only when the newest token completes it, so that one before
    ``min_new_tokens`` has no effect later. Tokens are never cut.
    """

    def __init__(self, tokenizer: Any, strings: Iterable[str]) -> None:
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        # A token is at least one byte of text; a few more give the decoder its context.
        self._window = max(len(s.encode()) for s in self._strings) + 8

    def completed_by_last(self, token_ids: list[int]) -> bool:
        """Whether the last of ``token_ids`` (the response so far) completes a stop string."""
        tail = token_ids[-self._window :]
        after, before = self._decode(tail), self._decode(tail[:-1])
        common = len(os.path.commonprefix([before, after]))
        return any(after.find(s, max(0, common - len(s) + 1)) >= 0 for s in self._strings)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
