"""What every rollout engine does alike: checks of a request, seeds, when a response ends."""

from __future__ import annotations

import hashlib
import math
import os.path
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from rlframe.errors import ModelError, RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request, Sampling

__all__ = [
    "StopStrings",
    "check_request",
    "check_sampling",
    "check_version",
    "check_weights",
    "end_ids",
    "load_config",
    "load_tokenizer",
    "seed_of",
]

_COLDEST = 1e-6
"""Lower temperatures but 0 would divide logits to infinity."""
_LARGEST = 2**31 - 1
"""Counts beyond are no counts, and fit into no engine's numbers."""


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


def check_request(
    request: Request, vocab: int, max_positions: int, ends: Collection[int] = ()
) -> None:
    """Raise RolloutError for a prompt, sampling or deadline that cannot be served.

    What one request asks for must not reach a step that it shares with others. ``ends`` are the
    model's own end tokens.
    """
    check_sampling(request)
    prompt, who = request.prompt_ids, _who(request)
    _check_ids(f"{who} holds", prompt, vocab, ": is the tokenizer of another model?")
    if len(prompt) >= max_positions:
        raise RolloutError(
            f"{who} has a prompt of {len(prompt)} tokens, but the model has {max_positions} "
            "positions, of which the response needs at least one: lower data.max_prompt_tokens"
        )
    if request.sampling.stop_token_ids:
        stops = request.sampling.stop_token_ids
        _check_ids(f"{who}: stop_token_ids={stops} holds", stops, vocab, "")
        least = request.sampling.min_new_tokens
        if least and len({*ends, *stops}) >= vocab:
            raise RolloutError(
                f"{who}: stop_token_ids are all {vocab} tokens, so that none is left to draw "
                f"before min_new_tokens={least}"
            )


def check_sampling(request: Request) -> None:
    """Raise RolloutError for what no engine serves, whatever its model."""
    who, deadline = _who(request), request.deadline_s
    if not isinstance(request.sampling, Sampling):
        raise RolloutError(f"{who}: sampling is a {type(request.sampling).__name__}")
    if not isinstance(request.prompt_ids, tuple):
        kind = type(request.prompt_ids).__name__
        raise RolloutError(f"{who}: prompt_ids is a {kind} where a tuple of token ids is due")
    if not request.prompt_ids:
        raise RolloutError(f"{who} has an empty prompt: it needs at least one token")
    if deadline is not None and not (_is_number(deadline) and math.isfinite(deadline)):
        raise RolloutError(f"{who}: deadline_s={deadline!r} is no number of seconds, nor None")
    wrong = _wrong(request.sampling)
    if wrong:
        raise RolloutError(f"{who}: {wrong}")


def check_weights(version: int, tensors: Mapping[str, Any]) -> None:
    """Raise RolloutError for no version, and for one without weights."""
    check_version(version)
    if not tensors:
        raise RolloutError(f"version {version} comes without weights")


def check_version(version: int) -> None:
    """Raise RolloutError for what can be no version of weights: below 0 means that there are none.

    A later load may have a lower version than the one before, as after a resume.
    """
    if not _is_integer(type(version)) or version < 0:
        raise RolloutError(f"{version!r} is no version of weights: they begin at 0")


def _who(request: Request) -> str:
    return f"request '{request.request_id}' (group {request.group_id})"


def _check_ids(holds: str, ids: Sequence[Any], vocab: int, hint: str) -> None:
    strange = next((kind for kind in set(map(type, ids)) if not _is_integer(kind)), None)
    if strange is not None:
        raise RolloutError(f"{holds} a {strange.__name__} where a token id is due")
    if min(ids) < 0 or max(ids) >= vocab:
        raise RolloutError(
            f"{holds} token id {min(ids) if min(ids) < 0 else max(ids)}, outside of "
            f"the model's 0 to {vocab - 1}{hint}"
        )


def _is_integer(kind: type) -> bool:
    return issubclass(kind, Integral) and not issubclass(kind, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _wrong(sampling: Sampling) -> str:
    """The first field without a number, or out of range; NaN is in none."""
    reals: dict[str, Callable[[float], bool]] = {
        "temperature": lambda t: t == 0 or _COLDEST <= t <= 100,
        "top_p": lambda p: 0 < p <= 1,
        "min_p": lambda p: 0 <= p <= 1,
    }
    counts: dict[str, Callable[[int], bool]] = {
        "top_k": lambda k: 0 <= k <= _LARGEST,
        "max_new_tokens": lambda n: 1 <= n <= _LARGEST,
        "min_new_tokens": lambda n: 0 <= n <= sampling.max_new_tokens,
    }
    for name, fine in reals.items():
        value = getattr(sampling, name)
        if not (_is_number(value) and fine(value)):
            return f"{name}={value!r} is out of range"
    for name, fits in counts.items():
        value = getattr(sampling, name)
        if not (_is_integer(type(value)) and fits(value)):
            return f"{name}={value!r} is out of range"
    if sampling.seed is not None and not _is_integer(type(sampling.seed)):
        return f"seed={sampling.seed!r} is no integer"
    return "" if _are_texts(sampling.stop) else f"stop={sampling.stop!r} is out of range"


def _are_texts(values: Any) -> bool:
    """Whether these are strings that a text can hold."""
    if not isinstance(values, tuple | list) or not all(isinstance(s, str) and s for s in values):
        return False
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return False
    return True


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
