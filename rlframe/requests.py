"""What is asked of a rollout engine and what comes back: requests, completions, episodes, groups.

Example of a single-turn flow: a dataset :class:`Row` is turned by ``Algorithm.requests`` into G
:class:`Request`; each becomes an :class:`Episode` of one :class:`Segment`; the episodes of one draw
of a prompt are a :class:`Group`, the unit that is collected, accepted or refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "Completion",
    "Episode",
    "FinishReason",
    "Group",
    "Request",
    "Row",
    "Sampling",
    "Segment",
]

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. ``temperature=0`` is greedy."""

    temperature: float = 1.0
    """Softmax temperature, 0 to 100; 0 takes the most probable token."""
    top_p: float = 1.0
    """Nucleus mass kept, in (0, 1]; 1 keeps all."""
    top_k: int = 0
    """Number of most probable tokens kept; 0 keeps all."""
    min_p: float = 0.0
    """Tokens below this share of the most probable one are dropped, 0 to 1."""
    max_new_tokens: int = 16
    """Longest response, tokens, at least 1."""
    min_new_tokens: int = 0
    """End tokens are not drawn, and stop strings have no effect, before this many tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end a response; they stay in it, with their tokens and log-probabilities."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a response; the token stays in it."""
    seed: int | None = None
    """Seed of this request's own random stream; None lets the engine choose one."""


@dataclass(frozen=True)
class Request:
    """One generation to be done.

    ``prompt_ids`` are exact tokens; ``train=False`` marks a sample that is only looked at (ReMax's
    greedy baseline); ``deadline_s``, seconds from the call of ``generate``, ends it with
    ``finish_reason='abort'``. The ids are stamped by the Collector.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    train: bool = True
    deadline_s: float | None = None
    request_id: str = ""
    group_id: int = -1
    episode_id: int = -1
    session_id: str = ""


@dataclass(frozen=True)
class Completion:
    """Sampled tokens of one request: equal lengths T for ids, log-probs (nats) and versions."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason


@dataclass(frozen=True)
class Row:
    """One prompt as drawn from the data: exact ids, its dataset columns, its place in the run.

    ``group_id`` counts draws over the whole run, so it is unique; ``columns`` holds every column of
    the dataset row (``answer``, ...), with ``prompt`` as it was written.
    """

    prompt_ids: tuple[int, ...]
    columns: Mapping[str, Any]
    group_id: int = -1
    sampling: Sampling = field(default_factory=Sampling)
    source: str = ""

    def request(self, *, train: bool = True, **sampling: Any) -> Request:
        """A request for this prompt under the run's sampling, with the given fields replaced."""
        return Request(self.prompt_ids, dataclasses.replace(self.sampling, **sampling), train=train)


@dataclass
class Segment:
    """One training row of an episode; the lists of length R run over its response tokens.

    ``response_mask`` is True at tokens that the policy sampled; tool and environment tokens are
    False there, with log-prob 0 and version -1.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[bool]
    logprobs: list[float]
    versions: list[int]
    turn_ids: list[int]
    token_rewards: list[float] | None = None


@dataclass
class Episode:
    """What became of one request: its rows, how it ended, what it earned."""

    request: Request
    segments: list[Segment]
    finish_reason: FinishReason
    text: str = ""
    reward: float | None = None
    """Weighted sum of ``reward_parts``; None until scored, or when every reward abstained."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    """Further per-episode columns declared by a component."""
    earned: float | Mapping[str, float] | None = None
    """What the environment gave: a summand of the outcome beside those of the rewards."""
    fault: str = ""
    """Why the environment could not play it to its end; it is then left out and counted."""
    figures: dict[str, float] = field(default_factory=dict, compare=False)
    """Counts and seconds of the episode (turns, tool calls, ...), logged as means."""
    trace: list[dict[str, Any]] = field(default_factory=list, compare=False)
    """Its turns for ``traces/`` in the run's folder: JSON values."""

    @property
    def length(self) -> int:
        """Number of tokens that the policy sampled (never a span)."""
        return sum(sum(s.response_mask) for s in self.segments)


@dataclass
class Group:
    """All episodes of one draw of a prompt."""

    row: Row
    episodes: list[Episode]

    @property
    def trained(self) -> list[Episode]:
        """The episodes that are learned from (``Request.train``)."""
        return [e for e in self.episodes if e.request.train]

    @property
    def rewards(self) -> list[float]:
        """Outcome rewards of the trained episodes that have one."""
        return [e.reward for e in self.trained if e.reward is not None]
