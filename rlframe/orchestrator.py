"""The single controller: three stages of a step over abstract parts.

It knows no algorithm, no engine and no device. The Scheduler orders the stages; what a finished
step entails (metrics, validation, snapshot) follows each item that the Scheduler yields.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlframe.algorithm import RoleSpec
from rlframe.asking import ask, ask_atoms, ask_mapping
from rlframe.batching.assemble import join_entries
from rlframe.batching.batch import Batch
from rlframe.batching.ledger import Ledger
from rlframe.batching.plan import UpdatePlan, plan_batch
from rlframe.calling.together import infer_together, update_together
from rlframe.collecting.entry import GroupEntry
from rlframe.collecting.gathering import Gathering
from rlframe.errors import RlframeError
from rlframe.interfaces.checkpoint import SyncStats
from rlframe.learning.advantages import add_advantages, columns_read
from rlframe.parts import Parts
from rlframe.recording.engine_figures import EngineFigures
from rlframe.recording.memory import peak_memory_gb
from rlframe.recording.metrics import (
    ROLE_PREFIX,
    Stopwatch,
    batch_metrics,
    score_metrics,
    staleness_metrics,
)
from rlframe.recording.profiling import StepProfiles
from rlframe.recording.utilisation import Utilisation
from rlframe.recovery.latecomers import Latecomers
from rlframe.roles import roles_of
from rlframe.snapshots.run_state import Learned, load_run_state, run_state
from rlframe.weights.publishing import Running, publish_to

__all__ = ["Orchestrator", "Parts"]


class Orchestrator:
    """Runs collect, learn and publish. ``step`` counts finished steps, ``version`` publishes."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.config, self.algorithm = parts, parts.config, parts.algorithm
        self.roles, self.buffer, self.stream = parts.roles, parts.buffer, parts.stream
        self.step = 0
        self.version = 0
        self.stop_reason = ""
        self.clock = Stopwatch(parts.timeline.log)
        self.gathering = Gathering.of(parts)
        self.intake = self.gathering.intake
        self.ledger = Ledger(parts.transfer)
        """Told of every batch and group that nothing will read again."""
        self.latecomers = Latecomers(parts.checkpoint, parts.rollout, parts.recorder.replica)
        self._read_before = 0
        self._specs = roles_of(self.config, self.algorithm)
        self._figures: dict[str, float] = {}
        self._engines = EngineFigures()
        self._learned: Learned | None = None
        self._held = False
        self._use = Utilisation(parts.roles["policy"], self.config.role("policy").model.path)
        self._profiles = StepProfiles(
            parts.roles["policy"], parts.recorder.run_dir, self.config.run.profile_steps
        )
        self._step_began = 0.0

    @property
    def done(self) -> bool:
        """Whether the run has its steps, or was asked to stop."""
        return self.step >= self.config.steps or bool(self.stop_reason)

    @property
    def steps_left(self) -> int:
        """Steps that are still to be taken, one that runs included."""
        return max(self.config.steps - self.step, 0)

    @property
    def takes_turns(self) -> bool:
        """Whether trainer and rollout share storage, so that none may run beside the other."""
        checkpoint = self.config.checkpoint
        return bool(checkpoint.load().shares_storage(checkpoint.config))

    # --- the three stages -------------------------------------------------------------------

    def collect(self, count: int | None = None) -> Batch:
        """Play groups until ``count`` (default: a step's prompts) are accepted."""
        wanted = count or self.config.data.prompts_per_step
        self._phase("generate")
        with self.clock.stage("gen"):
            groups = self.gathering.take(wanted, self.version, self.steps_left)
        return self.join(groups)

    def join(self, groups: Sequence[GroupEntry]) -> Batch:
        """The batch of a step from groups that were taken out of the buffer."""
        self.intake.forget(entry.group_id for entry in groups)
        batch = join_entries(groups)
        second = self.parts.second
        self._figures |= batch_metrics(batch, groups) | self.intake.take_figures()
        self._figures |= staleness_metrics(groups, self.version)
        self.parts.recorder.collected(self.step + 1, groups)
        return batch if second is None else second.join(batch)

    def learn(self, batch: Batch) -> dict[str, float]:
        """Score the batch, derive advantages, update every trained role."""
        self.parts.recorder.updating()
        self._phase("train")
        batch = self._score(batch)
        ask(self.algorithm, "scored", batch)
        batch.scalars = ask_mapping(self.algorithm, "scalars")
        with self.clock.stage("adv"):
            batch = add_advantages(self.algorithm, batch, self.roles["policy"])
        self.parts.recorder.advantages_known(self.step + 1, batch)
        self.latecomers.updating()
        metrics = self._update(batch)
        self.ledger.done(batch)
        self._learned = Learned(metrics, self.version + 1)
        self._use.updated(batch, self._specs[0].schedule(self.algorithm.config)[0])
        return metrics

    def hold(self, running: Running) -> None:
        """Stop generations until the next publish: the trainer has the devices for itself."""
        if self.parts.rollout is not None:
            self._held = True
            self.parts.rollout.call("pause", running).result()

    def publish(self, running: Running = "none") -> None:
        """Give the rollout engines the policy's weights as the next version; see ``publish_to``."""
        self.version += 1
        running, self._held = ("keep" if self._held else running), False
        if self.parts.checkpoint is None:
            return
        with self.latecomers.publishing(), self.clock.stage("update_weights"):
            stats = publish_to(self.parts.checkpoint, self.parts.rollout, self.version, running)
        self._published(stats)
        self.parts.timeline.mark(self.step + 1, self.version)

    # --- what the stages are made of ---------------------------------------------------------

    def _published(self, stats: SyncStats) -> None:
        for note in stats.notes:
            self.parts.recorder.message(note)
        self._figures |= stats.figures()

    def _phase(self, phase: Literal["train", "generate"]) -> None:
        """Make room for a stage, where stages take turns."""
        at_once = self.config.scheduler.load().overlaps and not self.takes_turns
        if self.parts.checkpoint is not None and not at_once:
            self.parts.checkpoint.phase(phase)

    def _score(self, batch: Batch) -> Batch:
        roles = [r for r in self._specs if r.outputs and not self._given_by_update(r)]
        scored = infer_together(roles, self.roles, batch, self.clock)
        self._figures |= score_metrics(scored, set(scored.columns) - set(batch.columns))
        return scored

    def _update(self, batch: Batch) -> dict[str, float]:
        plans = [(role, self.plan_update(role, batch)) for role in self._trained()]
        metrics: dict[str, float] = {}
        for role, results in update_together(plans, self.roles, batch, self.clock):
            metrics |= self._role_metrics(role, results)
        uneven = max((plan.imbalance for _, plan in plans), default=0.0)
        return metrics | {"perf/flops_imbalance": uneven}

    def plan_update(self, role: RoleSpec, batch: Batch) -> UpdatePlan:
        """Epochs x mini-batches x micro-batches of one role's update."""
        epochs, prompts = role.schedule(self.algorithm.config)
        return plan_batch(
            batch,
            epochs=epochs,
            minibatch_prompts=prompts,
            budget=self.config.role(role.name).optim.tokens_per_microbatch,
            ranks=self.roles[role.name].mesh.dp,
            width=self.roles[role.name].width,
            atom_ids=ask_atoms(self.algorithm, batch),
            seed=self.config.seed * 1_000_003 + self.step,
        )

    def _given_by_update(self, role: RoleSpec) -> bool:
        """Whether the update's own forward pass gives a role's outputs, so that none runs before.

        True for a role with one optimiser step a batch, whose weights are still those of the batch
        then, where nothing reads the columns before its loss.
        """
        epochs, prompts = role.schedule(self.algorithm.config)
        return (
            role in self._trained()
            and epochs == 1
            and (prompts == 0 or prompts >= self.config.data.prompts_per_step)
            and set(role.outputs) <= set(role.computes)
            and not set(role.outputs.values()) & set(columns_read(self.algorithm))
        )

    def _trained(self) -> Sequence[RoleSpec]:
        return [r for r in self._specs if r.trained and self.step + 1 >= r.from_step]

    def _role_metrics(self, role: RoleSpec, results: Sequence[Any]) -> dict[str, float]:
        prefix = ROLE_PREFIX.get(role.name, role.name)
        for reason in results[0].skipped:
            self.parts.recorder.skipped(self.step + 1, f"{role.name}: {reason}")
        return {f"{prefix}/{name}": value for name, value in results[0].metrics.items()}

    # --- the run ------------------------------------------------------------------------------

    def fit(self) -> None:
        """Run to the end. The state is saved where the Scheduler yields."""
        recorder, callbacks = self.parts.recorder, self.parts.callbacks
        try:
            recorder.started(self)
            callbacks.on_fit_start(self)
            if self.parts.checkpoint is not None:
                with self.latecomers.publishing():
                    self._published(self.parts.checkpoint.publish(self.version))
            if self.step == 0:
                recorder.validated(self, "before")
            self._run_steps()
            recorder.finished(self)
        except BaseException as error:
            callbacks.on_exception(self, error)
            recorder.failed(self, error)
            raise
        finally:
            self.latecomers.close()
            callbacks.on_fit_end(self)

    def _run_steps(self) -> None:
        scheduler = self.config.scheduler.load()(self.config.scheduler.config)
        self._announce_step()
        try:
            for metrics in scheduler.run(self):
                self._figures |= self._engines.take(self.parts.rollout)
                self.parts.recorder.step_done(self, self._finish_step(metrics))
                self._announce_step()
        except Exception as error:
            if self._learned is not None:
                self._keep_learned(self._learned, error)
            raise

    def _finish_step(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Count a step, and its figures."""
        self._learned = None
        self._profiles.end()
        self.step += 1
        figures = self._complete(metrics, time.perf_counter() - self._step_began)
        ask(self.algorithm, "after_step", figures)
        return figures

    def _keep_learned(self, learned: Learned, error: Exception) -> None:
        """Count a step that broke after its updates: what was learned is not to be lost."""
        self.version = learned.version
        try:
            self.parts.recorder.step_learned(self, self._finish_step(learned.metrics))
        except RlframeError as second:
            error.add_note(f"step {self.step} was learned, and {second}")

    def _announce_step(self) -> None:
        self._step_began = time.perf_counter()
        if not self.done:
            self.parts.timeline.mark(self.step + 1, self.version)
            self._profiles.begin(self.step + 1)
            self.parts.callbacks.on_step_start(self)

    def _complete(self, metrics: Mapping[str, float], seconds: float) -> dict[str, float]:
        figures, self._figures = self._figures, {}
        timing = self.clock.take() | {"timing_s/step": seconds}
        tokens = figures.get("perf/total_num_tokens", 0.0)
        seen = self.parts.transfer.bytes_read
        read, self._read_before = seen - self._read_before, seen
        return {
            **figures,
            **metrics,
            **timing,
            "perf/driver_bytes": float(read),
            "perf/cpu_memory_peak_gb": peak_memory_gb(),
            "perf/throughput": tokens / seconds if seconds else 0.0,
            **self._use.figures(timing.get("timing_s/update_actor", 0.0)),
            "training/global_step": float(self.step),
            "training/epoch": float(self.stream.epoch),
            "data/dropped_prompts": float(self.stream.dropped),
            "data/truncated_prompts": float(self.stream.truncated),
            "training/policy_version": float(self.version),
        }

    # --- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a snapshot keeps beside the models: JSON values and tensors."""
        return run_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse of :meth:`state_dict`."""
        load_run_state(self, state)
