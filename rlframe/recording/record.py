"""What a run leaves behind: figures, samples, rollouts, validations, snapshots, a summary.

The Orchestrator tells it what happened; it tells loggers, callbacks and plugins' hooks.
"""

from __future__ import annotations

import copy
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.asking import ask_mapping
from rlframe.batching.batch import Batch
from rlframe.collecting.buffer import buffer_state
from rlframe.collecting.entry import GroupEntry
from rlframe.config import Config
from rlframe.interfaces.loop import Logger
from rlframe.recording.callbacks import CallbackList
from rlframe.recording.loggers import LoggerError, LoggerList
from rlframe.recording.samples import Pieces, TokenFile, dump_lines, sample_rows
from rlframe.recording.saving import Saver
from rlframe.recording.summary import write_summary
from rlframe.snapshots.rng import rng_state
from rlframe.snapshots.snapshot import SnapshotStore
from rlframe.timeline import CONTROLLER

if TYPE_CHECKING:
    from rlframe.orchestrator import Orchestrator

__all__ = ["Recorder"]

_SAMPLES = 3
"""Episodes of a step that are shown."""
_FLAT_STEPS = 3
"""Steps without any difference of rewards before that is said."""

Validator = Callable[[], Mapping[str, float]]


class Recorder:
    """Writes a run's folder. ``validator`` is None where there is nothing to validate on."""

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        loggers: Sequence[Logger],
        callbacks: CallbackList,
        snapshots: SnapshotStore,
        hooks: Any,
        validator: Validator | None,
        pieces: Pieces,
    ) -> None:
        self.run_dir = run_dir
        self._config, self._callbacks = config, callbacks
        self._logger = LoggerList(loggers)
        self._tokens_of = TokenFile(run_dir, pieces)
        self._hooks, self._validator = hooks, validator
        self._saver = Saver(snapshots, callbacks, background=config.run.save_in_background)
        self._summary: dict[str, Any] = {"status": "running", "steps": 0}
        self._summary |= {"skipped": [], "replicas": []}
        self._began = time.perf_counter()
        self._tokens = self._busy_s = 0.0
        self._flat_steps = 0
        self._kept: dict[str, Any] | None = None
        self._restart, self._restarts = "", list[Mapping[str, Any]]()

    @property
    def saved(self) -> Path | None:
        """The last snapshot that is whole."""
        return self._saver.saved

    # --- events of a run --------------------------------------------------------------------

    def started(self, run: Orchestrator) -> None:
        """Open the loggers; tell plugins."""
        self._logger.start(str(self.run_dir), self._config, self._config.steps, run.step)
        if self._restart:
            self.message(self._restart)
            write_summary(self.run_dir, self._progress(run) | {"status": "running"})
        config = self._config
        rollout = "" if run.algorithm.offline else f", rollout {config.rollout.name}"
        self.message(
            f"{config.algo.name} on {config.model.path} with {config.data.train} "
            f"(strategy {config.strategy.name}{rollout}, {config.steps} steps)"
        )
        sampling = config.rollout.config.sampling()
        if not run.algorithm.offline and (sampling.top_p < 1 or sampling.top_k or sampling.min_p):
            self.message(
                "top_p, top_k or min_p cut the distribution that is sampled from; the trainer's "
                "log-probabilities are of the whole one. Watch actor/rollout_logprob_gap"
            )
        run.parts.timeline.begin(run.step + 1, run.version)
        self._hooks.rlframe_fit_start(run=run, config=config)

    def collected(self, step: int, groups: Sequence[GroupEntry]) -> None:
        """Show some samples of a step; write all completions where ``run.dump_rollouts`` asks."""
        every = self._config.run.samples_every
        if every and (step % every == 0 or step == 1):
            self._logger.samples(step, sample_rows(groups, _SAMPLES))
            self._tokens_of.show(groups[:_SAMPLES])
        if self._config.run.dump_rollouts:
            self._dump(step, groups)

    def advantages_known(self, step: int, batch: Batch) -> None:
        """Write the tokens of a step's samples, with their advantages."""
        self._tokens_of.write(step, batch)

    def step_done(self, run: Orchestrator, metrics: dict[str, float]) -> None:
        """Validate and save where it is due, then log the step's figures, complete."""
        options = self._config.run
        self._count(metrics)
        last = run.done
        due = options.validate_every and run.step % options.validate_every == 0
        if due and not last:
            metrics |= self._validate(run)
        if last and run.step >= self._config.steps:
            metrics |= self.validated(run, "after")
        self._log_step(run, metrics)
        self._saver.look(run)
        # A callback may have ended the run: what it ended with is saved too.
        if run.done or (options.save_every and run.step % options.save_every == 0):
            self.save(run)
        self._fetch_timeline(run)
        self._kept = None if run.done else _before_collecting(run)

    def step_learned(self, run: Orchestrator, metrics: dict[str, float]) -> None:
        """A step whose updates were done before something broke: its state is what is rescued."""
        self._count(metrics)
        self._log_step(run, metrics)
        self._kept = _before_collecting(run)

    def updating(self) -> None:
        """The weights are about to change: they no longer belong to the state of the last step."""
        self._kept = None

    def validated(self, run: Orchestrator, when: str) -> dict[str, float]:
        """Validate and note the result in the summary as ``val_before`` or ``val_after``."""
        figures = self._validate(run)
        if figures:
            value = figures.get("val/reward/mean", figures.get("val/loss"))
            self._summary[f"val_{when}"] = value
            self.message(f"validation {when} training: {_short(figures)}")
            if when == "before":
                self._logger.log(run.step, figures)
        return figures

    def save(self, run: Orchestrator, earlier: Mapping[str, Any] | None = None) -> None:
        """Write a snapshot of the whole state, with what is ``earlier`` instead of now's."""
        state = {"run": run.state_dict(), "rng": rng_state(), "summary": self._progress(run)}
        for part, values in (earlier or {}).items():
            state[part] |= values
        self._saver.save(run, state, wait=run.done or earlier is not None)

    def finished(self, run: Orchestrator) -> None:
        """Write the summary and close the loggers."""
        status = f"stopped: {run.stop_reason}" if run.stop_reason else "finished"
        self._close(run, status, None)

    def failed(self, run: Orchestrator, error: BaseException) -> None:
        """Write the summary with the reason and close the loggers.

        Where a step failed before its updates began (a reward, a row), the state after the step
        before it is saved, and the error says how to go on.
        """
        if isinstance(error, Exception):
            self._rescue(run, error)
        try:
            self._close(run, f"failed: {type(error).__name__}: {error}", error)
        except LoggerError as second:
            error.add_note(str(second))

    def message(self, text: str) -> None:
        """A line for people."""
        self._logger.message(text)

    def skipped(self, step: int, reason: str) -> None:
        """An optimiser step that was skipped, by name."""
        self._summary["skipped"].append({"step": step, "reason": reason})
        self.message(f"step {step}: {reason}")

    def replica(self, line: str) -> None:
        """A rollout replica is lost or back: into the log and the summary."""
        self._summary["replicas"].append(line)
        self.message(line)

    def restore(self, summary: Mapping[str, Any]) -> None:
        """Go on from the summary that a snapshot kept."""
        self._summary |= {k: v for k, v in summary.items() if k != "status"}
        self._tokens, self._busy_s = float(summary["tokens"]), float(summary["busy_s"])
        self._began -= float(summary["wall_s"])

    def restarted(self, why: str, restarts: Sequence[Mapping[str, Any]]) -> None:
        """Told before the start: why this life began ("": the first), and every restart so far."""
        self._restart, self._restarts = why, list(restarts)

    # --- inside --------------------------------------------------------------------------------

    def _count(self, metrics: Mapping[str, float]) -> None:
        self._tokens += metrics.get("perf/total_num_tokens", 0.0)
        self._busy_s += metrics["timing_s/step"]
        self._warn_of_no_signal(metrics)

    def _log_step(self, run: Orchestrator, metrics: dict[str, float]) -> None:
        self._logger.log(run.step, metrics)
        self._callbacks.on_step_end(run, metrics)
        self._hooks.rlframe_step_end(run=run, step=run.step, metrics=metrics)

    def _warn_of_no_signal(self, metrics: Mapping[str, float]) -> None:
        """Say once when several steps had nothing to tell a good response from a bad one."""
        flat = metrics.get("critic/rewards/zero_variance_groups") == 1.0
        self._flat_steps = self._flat_steps + 1 if flat else 0
        if self._flat_steps == _FLAT_STEPS:
            self.message(
                f"{_FLAT_STEPS} steps in a row every group's rewards were all equal: there is "
                "nothing to learn from. Look at samples.jsonl, the reward and the prompts"
            )

    def _validate(self, run: Orchestrator) -> dict[str, float]:
        if self._validator is None:
            return {}
        with run.parts.timeline.log.span(CONTROLLER, "validation"):
            figures = dict(self._validator())
        self._callbacks.on_validation_end(run, figures)
        return figures

    def _rescue(self, run: Orchestrator, error: Exception) -> None:
        try:
            self._saver.finish(run)
            if self._kept is not None and self._saver.step != run.step:
                self._kept["run"]["buffer"] = buffer_state(self._kept["run"]["buffer"])
                self.save(run, self._kept)
        except Exception as second:  # a dead worker cannot save: the first error is told
            error.add_note(f"the state after step {run.step} could not be saved: {second}")
        saved = self._saver.paths()
        if saved:
            error.add_note(
                f"saved is {saved[-1].name}. Go on with: rlframe fit --resume "
                f"{shlex.quote(str(self.run_dir))}"
            )

    def _progress(self, run: Orchestrator) -> dict[str, Any]:
        return self._summary | {
            "steps": run.step,
            "restarts": self._restarts,
            "wall_s": time.perf_counter() - self._began,
            "tokens": self._tokens,
            "busy_s": self._busy_s,
            "tokens_per_s": self._tokens / self._busy_s if self._busy_s else 0.0,
        }

    def _close(self, run: Orchestrator, status: str, error: BaseException | None) -> None:
        summary = self._progress(run) | {"status": status}
        write_summary(self.run_dir, summary)
        self._fetch_timeline(run, last=True)
        self._hooks.rlframe_fit_end(run=run, error=error)
        self._logger.close()

    def _fetch_timeline(self, run: Orchestrator, *, last: bool = False) -> None:
        note = run.parts.timeline.fetch(last=last)
        if note:
            self.message(note)

    def _dump(self, step: int, groups: Sequence[GroupEntry]) -> None:
        folder = self.run_dir / "rollouts"
        folder.mkdir(exist_ok=True)
        text = "".join(dump_lines(groups))
        (folder / f"step-{step:06d}.jsonl").write_text(text, encoding="utf-8")


def _before_collecting(run: Orchestrator) -> dict[str, Any]:
    """The parts of a run's state that collecting changes; waiting groups are not yet read."""
    parts = {
        "stream": run.stream.state_dict(),
        "intake": run.intake.state_dict(),
        "algorithm": ask_mapping(run.algorithm, "state_dict"),
    }
    kept = copy.deepcopy({"run": parts, "rng": rng_state()})
    kept["run"]["buffer"] = list(run.buffer)
    return kept


def _short(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{n.removeprefix('val/')} {v:.4g}" for n, v in figures.items())
