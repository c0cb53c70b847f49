"""What hangs on the loop: schedulers, samplers, tails, callbacks, loggers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from rlframe.collecting.entry import GroupEntry
    from rlframe.config import Config
    from rlframe.orchestrator import Orchestrator
    from rlframe.requests import Request

__all__ = ["Callback", "Logger", "Metrics", "Sampler", "Scheduler", "Tail"]

Metrics = Mapping[str, float]


class Scheduler(ABC):
    """Orders collect, learn and publish; yields only where the state can be saved."""

    overlaps: ClassVar[bool] = False
    """Whether groups are played while the policy learns or its weights are published."""
    config: Any

    @classmethod
    def takes_turns(cls, config: Any) -> bool:
        """Whether one that overlaps also runs where trainer and rollout share the weights' storage.

        It then stops generations before each update, or waits for them; see
        ``Orchestrator.takes_turns``.
        """
        return False

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def run(self, orchestrator: Orchestrator) -> Iterator[Metrics]:
        """One item a finished step, until ``orchestrator.done``."""


class Sampler(ABC):
    """Chooses which waiting groups a step takes from the buffer."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def choose(
        self,
        waiting: Sequence[GroupEntry],
        count: int,
        version: int,
        played: Sequence[int] = (),
    ) -> list[int]:
        """Positions of the groups to take, ``count`` of them, in order, by their summaries.

        ``played`` are the ids of groups that have not ended. Fewer than ``count`` positions mean
        that one of these is to be waited for.
        """


class Tail:
    """What becomes of responses that take much longer than others; by default all are waited for.

    The first three methods act within a group, where it is played; the rest on whole groups, where
    a step is put together, for schedulers that play groups of one step at a time.
    """

    config: Any
    leftover: ClassVar[Literal["none", "continue", "again"]] = "none"
    """Groups that are still played when a step has its own: none are, since all are waited for;
    they continue under the next weights; or they end, and a later step plays their prompts again
    and waits for all."""
    bound: int = 0
    """Versions that a token may be older than the weights that learn from it."""
    wait_s: float = 3600.0
    """Longest wait for a group, seconds, where ``leftover`` is not "none"."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def requests(self, requests: Sequence[Request]) -> list[Request]:
        """What is asked for instead of a group's requests: further samples, deadlines."""
        return list(requests)

    def enough(self, requests: Sequence[Request]) -> int:
        """How many trained episodes end a group, of the method's ``requests``; others are aborted.

        Those that are not trained on are always waited for.
        """
        return sum(request.train for request in requests)

    def keeps_late(self) -> bool:
        """Whether a trained episode that its deadline ended stays in its group, as it is."""
        return True

    def groups(self, wanted: int) -> int:
        """Groups that are played so that ``wanted`` end sooner, at least ``wanted``."""
        return wanted


class Callback:
    """Lightning's verbs. Every method may be left out; an exception in one ends the run."""

    config: Any

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def on_fit_start(self, orchestrator: Orchestrator) -> None:
        """Before the first step, after a snapshot was loaded."""

    def on_step_start(self, orchestrator: Orchestrator) -> None:
        """Before a step."""

    def on_step_end(self, orchestrator: Orchestrator, metrics: Metrics) -> None:
        """After a step, its metrics complete."""

    def on_validation_end(self, orchestrator: Orchestrator, metrics: Metrics) -> None:
        """After a validation."""

    def on_snapshot_saved(self, orchestrator: Orchestrator, path: str) -> None:
        """After a snapshot is whole on disk."""

    def on_exception(self, orchestrator: Orchestrator, error: BaseException) -> None:
        """When the run ends by an exception."""

    def on_fit_end(self, orchestrator: Orchestrator) -> None:
        """After the last step, also after an exception."""

    def state_dict(self) -> dict[str, Any]:
        """State for the snapshot: JSON values and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse of :meth:`state_dict`."""


class Logger(ABC):
    """Where figures go."""

    config: Any

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def start(self, run_dir: str, config: Config, total_steps: int, first_step: int) -> None:
        """Open. ``first_step`` steps are done already, 0 but for a resume: later entries go."""

    @abstractmethod
    def log(self, step: int, metrics: Metrics) -> None:
        """Figures of a step, complete."""

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:  # noqa: B027 - optional
        """Some prompts, responses and rewards of a step."""

    def message(self, text: str) -> None:  # noqa: B027 - optional
        """A line for people."""

    def close(self) -> None:  # noqa: B027 - optional
        """Flush and close."""
