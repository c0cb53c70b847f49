"""What a Lightning callback finds where it expects a Trainer and a LightningModule.

Only what is true of a run of ours is there; anything else raises with the list of what there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rlframe.orchestrator import Orchestrator

__all__ = ["ModuleView", "TrainerView"]


def _absent(what: object, name: str) -> NoReturn:
    has = sorted({n for n in (*vars(type(what)), *vars(what)) if not n.startswith("_")})
    raise AttributeError(
        f"'{name}' is nothing that rlframe offers to a Lightning callback; {type(what).__name__} "
        f"has: {', '.join(has)}"
    )


class ControllerStrategy:
    """The controller is one process: what is decided here is decided for all."""

    root_device = "cpu"

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """The decision itself."""
        return decision

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """The value itself."""
        return value

    def barrier(self, name: str | None = None) -> None:
        """Nothing to wait for."""

    def __getattr__(self, name: str) -> NoReturn:
        _absent(self, name)


class ModuleView:
    """Stands for the LightningModule: figures that a callback logs, and where the run is.

    Logged figures are in ``trainer.callback_metrics`` from then on; the step's own are written
    already when a callback is told of its end, so they reach no logger.
    """

    def __init__(self) -> None:
        self.trainer: TrainerView | None = None

    @property
    def current_epoch(self) -> int:
        """See :class:`TrainerView`."""
        return self._trainer().current_epoch

    @property
    def global_step(self) -> int:
        """See :class:`TrainerView`."""
        return self._trainer().global_step

    def log(self, name: str, value: Any, *arguments: Any, **options: Any) -> None:
        """Keep one figure in ``callback_metrics``."""
        import torch

        self._trainer().callback_metrics[name] = torch.as_tensor(value, dtype=torch.float32)

    def log_dict(self, dictionary: Mapping[str, Any], *arguments: Any, **options: Any) -> None:
        """Keep several."""
        for name, value in dictionary.items():
            self.log(name, value)

    def print(self, *words: Any, **options: Any) -> None:
        """A line for people."""
        self._trainer().print(*words)

    def _trainer(self) -> TrainerView:
        assert self.trainer is not None
        return self.trainer

    def __getattr__(self, name: str) -> NoReturn:
        _absent(self, name)


class TrainerView:
    """Stands for the Trainer. ``callback_metrics`` holds the latest value of every figure."""

    is_global_zero = True
    global_rank = local_rank = node_rank = 0
    world_size = num_nodes = num_devices = 1
    training = True
    sanity_checking = fast_dev_run = testing = predicting = False
    val_check_interval = None
    check_val_every_n_epoch = None
    """Validation has its own rhythm (run.validate_every), so that EarlyStopping looks then."""

    def __init__(self, run: Orchestrator, callback: Any, module: ModuleView) -> None:
        from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState

        self._run = run
        self.lightning_module = self.model = module
        self.callbacks = [callback]
        self.callback_metrics: dict[str, Any] = {}
        self.strategy = ControllerStrategy()
        self.validating = False
        self.loggers: list[Any] = []
        self.logger = None
        self.state = TrainerState(fn=TrainerFn.FITTING, stage=RunningStage.TRAINING)

    @property
    def logged_metrics(self) -> dict[str, Any]:
        """The same as ``callback_metrics``."""
        return self.callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The same as plain numbers."""
        return {name: float(value) for name, value in self.callback_metrics.items()}

    @property
    def global_step(self) -> int:
        """Finished steps."""
        return self._run.step

    @property
    def current_epoch(self) -> int:
        """Whole passes over the prompts."""
        return self._run.stream.epoch

    @property
    def max_steps(self) -> int:
        """Steps of the run."""
        return self._run.config.steps

    @property
    def max_epochs(self) -> int:
        """-1: a run is counted in steps."""
        return -1

    @property
    def estimated_stepping_batches(self) -> int:
        """Steps of the run."""
        return self._run.config.steps

    @property
    def default_root_dir(self) -> str:
        """The run's folder."""
        return str(self._run.parts.recorder.run_dir)

    @property
    def log_dir(self) -> str:
        """The run's folder."""
        return self.default_root_dir

    @property
    def should_stop(self) -> bool:
        """Whether the run ends after this step; set it to end the run, its state is saved."""
        return bool(self._run.stop_reason)

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        name = type(self.callbacks[0]).__name__
        if value and not self._run.stop_reason:
            self._run.stop_reason = f"callback {name}"
        elif not value and self._run.stop_reason == f"callback {name}":
            self._run.stop_reason = ""

    @property
    def interrupted(self) -> bool:
        """Whether a signal ends the run."""
        return self._run.stop_reason.startswith("SIG")

    def print(self, *words: Any, **options: Any) -> None:
        """A line for people."""
        self._run.parts.recorder.message(" ".join(str(word) for word in words))

    def save_checkpoint(self, filepath: Any, *arguments: Any, **options: Any) -> NoReturn:
        """Raises RuntimeError: snapshots are the run's own."""
        raise RuntimeError(
            "rlframe writes snapshots itself: set run.save_every and run.keep in place of a "
            "checkpoint callback"
        )

    def __getattr__(self, name: str) -> NoReturn:
        _absent(self, name)
