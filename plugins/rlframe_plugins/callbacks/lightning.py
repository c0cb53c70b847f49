"""Callbacks that were written for Lightning, on our loop.

What is called, in order, with a trainer and a module that look like Lightning's:

| here | there |
|---|---|
| the run starts | ``setup(stage="fit")``, state of a snapshot, ``on_fit_start``, ``on_train_start``, ``on_train_epoch_start`` |
| a step starts | ``on_train_batch_start(batch=None, batch_idx)`` |
| a step is done | ``on_train_batch_end(outputs=metrics, batch=None, batch_idx)`` |
| the data begins anew | ``on_train_epoch_end``, ``on_train_epoch_start`` |
| validation is done | ``on_validation_epoch_end``, ``on_validation_end`` |
| a snapshot is written | ``state_dict``, ``on_save_checkpoint`` |
| a run is resumed | ``load_state_dict``, ``on_load_checkpoint`` |
| an exception | ``on_exception`` |
| the run ends well | ``on_train_epoch_end``, ``on_train_end``, ``on_fit_end`` |
| the run ends | ``teardown(stage="fit")`` |

A step is a batch, a pass over the prompts is an epoch. No other verb is called: there is no single
backward pass or optimiser step that a callback could see from the controller.
"""  # noqa: E501

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlframe import ConfigError
from rlframe.host.resolve import load_target
from rlframe.interfaces.loop import Callback, Metrics
from rlframe_plugins.callbacks.lightning_trainer import ModuleView, TrainerView

if TYPE_CHECKING:
    from rlframe.orchestrator import Orchestrator

__all__ = ["LightningAdapter", "LightningCallback"]


class LightningAdapter(Callback, ABC):
    """Runs the Lightning callback that :meth:`make` returns. Derive from it to use one from Python.

    Example::

        class Enough(LightningAdapter):
            def make(self):
                return EarlyStopping("val/reward/mean", mode="max", patience=3)

        rlframe.fit(callback=[Enough])
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.callback: Any = None
        self._trainer: TrainerView | None = None
        self._saved: Mapping[str, Any] | None = None
        self._failed = False
        self._epoch = 0

    @abstractmethod
    def make(self) -> Any:
        """The Lightning callback."""

    # --- our verbs ----------------------------------------------------------------------------

    def on_fit_start(self, orchestrator: Orchestrator) -> None:
        """See :class:`Callback`. Raises ConfigError when ``make`` gives no Lightning callback."""
        from lightning.pytorch import Callback as Theirs

        self.callback = self.make()
        if not isinstance(self.callback, Theirs):
            raise ConfigError(f"{self.callback!r} is no lightning.pytorch.Callback")
        module = ModuleView()
        self._trainer = module.trainer = TrainerView(orchestrator, self.callback, module)
        self._epoch = orchestrator.stream.epoch
        self._tell("setup", stage="fit")
        if self._saved is not None:
            self.callback.load_state_dict(self._saved["state"])
            self._tell("on_load_checkpoint", self._saved["checkpoint"])
            self._saved = None
        self._tell("on_fit_start")
        self._tell("on_train_start")
        self._tell("on_train_epoch_start")

    def on_step_start(self, orchestrator: Orchestrator) -> None:
        """See :class:`Callback`."""
        self._tell("on_train_batch_start", None, orchestrator.step)

    def on_step_end(self, orchestrator: Orchestrator, metrics: Metrics) -> None:
        """See :class:`Callback`."""
        self._note(metrics)
        self._tell("on_train_batch_end", dict(metrics), None, orchestrator.step - 1)
        if orchestrator.stream.epoch != self._epoch:
            self._tell("on_train_epoch_end")
            self._epoch = orchestrator.stream.epoch
            if not orchestrator.done:
                self._tell("on_train_epoch_start")

    def on_validation_end(self, orchestrator: Orchestrator, metrics: Metrics) -> None:
        """See :class:`Callback`."""
        self._note(metrics)
        trainer = self._view()
        trainer.validating = True
        try:
            self._tell("on_validation_epoch_end")
            self._tell("on_validation_end")
        finally:
            trainer.validating = False

    def on_exception(self, orchestrator: Orchestrator, error: BaseException) -> None:
        """See :class:`Callback`."""
        self._failed = True
        if self._trainer is not None:
            self._tell("on_exception", error)

    def on_fit_end(self, orchestrator: Orchestrator) -> None:
        """See :class:`Callback`."""
        if self._trainer is None:
            return
        if not self._failed:
            self._tell("on_train_epoch_end")
            self._tell("on_train_end")
            self._tell("on_fit_end")
        self._tell("teardown", stage="fit")

    def state_dict(self) -> dict[str, Any]:
        """See :class:`Callback`."""
        if self.callback is None:
            return {}
        checkpoint: dict[str, Any] = {}
        self._tell("on_save_checkpoint", checkpoint)
        return {"state": self.callback.state_dict(), "checkpoint": checkpoint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :class:`Callback`; given to the Lightning callback once that is set up."""
        self._saved = state

    # --- inside -------------------------------------------------------------------------------

    def _view(self) -> TrainerView:
        assert self._trainer is not None, "on_fit_start comes first"
        return self._trainer

    def _tell(self, verb: str, *arguments: Any, **named: Any) -> None:
        trainer = self._view()
        getattr(self.callback, verb)(trainer, trainer.lightning_module, *arguments, **named)

    def _note(self, metrics: Metrics) -> None:
        import torch

        self._view().callback_metrics.update(
            {n: torch.tensor(float(v)) for n, v in metrics.items()}
        )


class LightningCallback(LightningAdapter):
    """A Lightning callback by its target, so that a command line or a file can name it.

    ``rlframe fit --callback lightning callback.target=my.py:Mine callback.options.patience=3``
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the adapter."""

        target: str
        """The callback's class: package.module:Class or file.py:Class."""
        options: dict[str, Any] = field(default_factory=dict)
        """Keyword arguments that it is made with."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            if ":" not in self.target:
                raise ValueError("target is package.module:Class or file.py:Class")

    def make(self) -> Any:
        """See :class:`LightningAdapter`. Raises ConfigError."""
        try:
            return load_target(self.config.target)(**self.config.options)
        except TypeError as error:
            raise ConfigError(f"callback '{self.config.target}': {error}") from error
