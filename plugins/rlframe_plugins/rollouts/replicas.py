"""What a router asks of a replica, and what is known of a response while it comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlframe.errors import RolloutError
from rlframe.requests import Completion, FinishReason, Request

__all__ = ["Replica", "ReplicaLost", "Seen"]


class ReplicaLost(RolloutError):
    """A replica died, or cannot be reached: another one may answer the request."""


@dataclass
class Seen:
    """The tokens of a response so far, with log-probabilities (nats) and weight versions."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add(
        self, token_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> None:
        """Add tokens that came; equal lengths."""
        assert len(token_ids) == len(logprobs) == len(versions)
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        self.versions.extend(versions)

    def extend(self, more: Seen | Completion) -> None:
        """Add what another replica drew after these."""
        self.add(more.token_ids, more.logprobs, more.versions)

    def completion(self, reason: FinishReason) -> Completion:
        """As the response that it is."""
        return Completion(tuple(self.token_ids), tuple(self.logprobs), tuple(self.versions), reason)


class Replica(ABC):
    """One engine of several that serve the same weights."""

    name: str
    gone_for_good: bool = False
    """Whether it can never come back."""
    signs: int = 0
    """Signs of life so far, as tokens that came: one that is only busy may answer checks late."""
    on_back: Callable[[], None] = staticmethod(lambda: None)
    """For a replica that knows by itself when it is there again, from whatever thread."""

    @abstractmethod
    async def generate(self, request: Request, seen: Seen) -> Completion:
        """As ``RolloutEngine.generate``. Raises ReplicaLost where the replica is lost.

        A replica that streams adds tokens to ``seen`` as they come. To be cancelled ends the
        request there.
        """

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """End a request: its ``generate`` returns what it has."""

    async def check(self) -> str:
        """Why it can take no requests now; empty where it can."""
        return ""

    async def welcome(self) -> None:
        """Called before a replica that was away gets requests. Raises ReplicaLost."""
