"""Telling every callback, in order; an exception in one names it and ends the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlframe.errors import ConfigError, RlframeError, SnapshotError
from rlframe.interfaces.loop import Callback, Metrics

if TYPE_CHECKING:
    from rlframe.config import Selected
    from rlframe.orchestrator import Orchestrator

__all__ = ["CallbackError", "CallbackList"]


class CallbackError(RlframeError):
    """A callback raised; the message names it and the verb."""


class CallbackList(Callback):
    """Several callbacks as one. Names (config name or class, numbered if repeated) key the state.

    Verbs of the end (``on_exception``, ``on_fit_end``) reach every callback, even after one raised.
    """

    def __init__(self, callbacks: Sequence[Callback] = (), names: Sequence[str] = ()) -> None:
        super().__init__(None)
        given = list(names) or [type(callback).__name__ for callback in callbacks]
        self.callbacks = dict(zip(_unique(given), callbacks, strict=True))

    @classmethod
    def from_config(
        cls, selected: Sequence[Selected], more: Sequence[Callback] = ()
    ) -> CallbackList:
        """The callbacks that a config names, loaded, and objects from Python after them."""
        made = [(s.name, s.load()(s.config)) for s in selected]
        for name, callback in [*made, *((type(c).__name__, c) for c in more)]:
            if not isinstance(callback, Callback):
                raise ConfigError(
                    f"callback '{name}' is {type(callback).__name__}: derive it from "
                    "rlframe.interfaces.loop.Callback"
                )
        names = [name for name, _ in made] + [type(c).__name__ for c in more]
        return cls([c for _, c in made] + list(more), names)

    def on_fit_start(self, orchestrator: Orchestrator) -> None:
        """See :class:`Callback`."""
        self._tell("on_fit_start", orchestrator)

    def on_step_start(self, orchestrator: Orchestrator) -> None:
        """See :class:`Callback`."""
        self._tell("on_step_start", orchestrator)

    def on_step_end(self, orchestrator: Orchestrator, metrics: Metrics) -> None:
        """See :class:`Callback`."""
        self._tell("on_step_end", orchestrator, metrics)

    def on_validation_end(self, orchestrator: Orchestrator, metrics: Metrics) -> None:
        """See :class:`Callback`."""
        self._tell("on_validation_end", orchestrator, metrics)

    def on_snapshot_saved(self, orchestrator: Orchestrator, path: str) -> None:
        """See :class:`Callback`."""
        self._tell("on_snapshot_saved", orchestrator, path)

    def on_exception(self, orchestrator: Orchestrator, error: BaseException) -> None:
        """See :class:`Callback`."""
        self._tell_all("on_exception", orchestrator, error)

    def on_fit_end(self, orchestrator: Orchestrator) -> None:
        """See :class:`Callback`."""
        self._tell_all("on_fit_end", orchestrator)

    def state_dict(self) -> dict[str, Any]:
        """The state of each callback that has one, by name."""
        states = {name: self._ask(name, "state_dict") for name in self.callbacks}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse of :meth:`state_dict`. Raises SnapshotError for a callback that is gone."""
        for name, value in state.items():
            if name not in self.callbacks:
                raise SnapshotError(
                    f"the snapshot has state of callback '{name}', which this run does not have "
                    f"(it has: {', '.join(self.callbacks) or 'none'}): add it with --callback"
                )
            self._ask(name, "load_state_dict", value)

    # --- inside -------------------------------------------------------------------------------

    def _tell(self, verb: str, *arguments: Any) -> None:
        for name in self.callbacks:
            self._ask(name, verb, *arguments)

    def _tell_all(self, verb: str, *arguments: Any) -> None:
        first: CallbackError | None = None
        for name in self.callbacks:
            try:
                self._ask(name, verb, *arguments)
            except CallbackError as error:
                first = first or error
        if first is not None:
            raise first

    def _ask(self, name: str, verb: str, *arguments: Any) -> Any:
        try:
            return getattr(self.callbacks[name], verb)(*arguments)
        except Exception as error:
            raise CallbackError(
                f"callback '{name}' raised in {verb}: {type(error).__name__}: {error}"
            ) from error


def _unique(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return out
