"""Policies for responses that take much longer than the others of their step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rlframe.config import Config as FitConfig
from rlframe.config import check_range
from rlframe.errors import ConfigError
from rlframe.interfaces.loop import Tail
from rlframe.requests import Request

__all__ = ["Deadline", "Defer", "EarlyStop", "Partial", "Wait"]


class Wait(Tail):
    """Every response is waited for."""


class Deadline(Tail):
    """A response ends after so many seconds, with the tokens that it has.

    The clock runs from its request, over queueing and pauses; each turn of an environment that asks
    anew has its own.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of ``tail: deadline``."""

        seconds: float = 60.0
        """Longest time of one generation, seconds, above 0."""
        late: Literal["keep", "drop"] = "keep"
        """keep learns from what is there (``finish_reason`` abort); drop leaves the episode out of
        its group, and counts it."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "seconds", above=0)

    config: Deadline.Config

    def requests(self, requests: Sequence[Request]) -> list[Request]:
        """See :class:`Tail`."""
        limit = self.config.seconds
        return [
            dataclasses.replace(r, deadline_s=min(limit, r.deadline_s or limit)) for r in requests
        ]

    def keeps_late(self) -> bool:
        """See :class:`Tail`."""
        return self.config.late == "keep"


class EarlyStop(Tail):
    """More samples a prompt than the method wants; the first ones are taken, the rest aborted.

    Long responses are under-represented in what is learned from: the price of the time.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of ``tail: early-stop``."""

        extra: float = 0.25
        """Further samples of a prompt, as a share of those wanted (rounded up), above 0 to 4."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "extra", above=0, high=4)

    config: EarlyStop.Config

    def requests(self, requests: Sequence[Request]) -> list[Request]:
        """See :class:`Tail`."""
        trained = [request for request in requests if request.train]
        more = math.ceil(self.config.extra * len(trained))
        return [*requests, *(trained[i % len(trained)] for i in range(more))]


@dataclass(frozen=True)
class _Surplus:
    """Options of a tail that plays more groups than a step needs."""

    extra: float = 0.5
    """Further groups of a step, as a share of those wanted (rounded up), above 0 to 1."""
    wait_s: float = 3600.0
    """Longest wait for a group that is played, seconds, above 0."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        check_range(self, "extra", above=0, high=1)
        check_range(self, "wait_s", above=0)


class _MoreGroups(Tail):
    config: _Surplus

    def __init__(self, config: _Surplus) -> None:
        super().__init__(config)
        self.wait_s = config.wait_s

    def groups(self, wanted: int) -> int:
        """See :class:`Tail`."""
        return wanted + math.ceil(self.config.extra * wanted)


class Partial(_MoreGroups):
    """More groups than a step needs; those that have not ended continue under the next weights.

    Each token carries the version that drew it. APRIL (arXiv 2509.18521).
    """

    leftover: ClassVar[Literal["none", "continue", "again"]] = "continue"

    @dataclass(frozen=True)
    class Config(_Surplus):
        """Options of ``tail: partial``."""

        staleness: int = 1
        """Versions that a token may be older than the weights that learn from it, at least 1: a
        group at this bound is waited for."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "staleness", 1)

    config: Partial.Config

    def __init__(self, config: Partial.Config) -> None:
        super().__init__(config)
        self.bound = config.staleness

    @staticmethod
    def validate(config: FitConfig) -> None:
        """The rollout engine must be able to stop between two tokens and go on."""
        _one_step_at_a_time(config)
        if not {"pause", "in-flight"} <= set(config.rollout.load().capabilities):
            raise ConfigError(
                f"tail 'partial' continues responses under new weights, which rollout "
                f"'{config.rollout.name}' cannot do: use --tail defer, or another rollout"
            )


class Defer(_MoreGroups):
    """More groups than a step needs; the slow ones are put off to steps that wait for all.

    Such a step has long responses only, and no short one idles beside them. No prompt is left out.
    Tokens are of the weights that learn from them, but for groups that end together with the last
    one that a step needs: they are one version old. RollPacker's tail batching (arXiv 2509.21009).
    """

    bound = 1
    leftover: ClassVar[Literal["none", "continue", "again"]] = "again"

    @dataclass(frozen=True)
    class Config(_Surplus):
        """Options of ``tail: defer``."""

    config: Defer.Config

    @staticmethod
    def validate(config: FitConfig) -> None:
        """See :func:`_one_step_at_a_time`."""
        _one_step_at_a_time(config)


def _one_step_at_a_time(config: FitConfig) -> None:
    """Overlapping schedulers have their own way with surplus groups; replayed ones have none."""
    if config.scheduler.load().overlaps:
        raise ConfigError(
            f"tail '{config.tail.name}' is for schedulers that take one step after another, and "
            f"'{config.scheduler.name}' overlaps them: use --scheduler sync, or --tail wait"
        )
    if config.algo.load().offline or "replay" in config.rollout.load().capabilities:
        raise ConfigError(
            f"tail '{config.tail.name}' needs a rollout that samples: use --tail wait"
        )
