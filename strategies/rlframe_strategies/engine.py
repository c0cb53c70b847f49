"""The model engine over any causal language model: micro-batches and loss terms over a Strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rlframe.batching.batch import Batch
from rlframe.batching.packed import Packed
from rlframe.batching.plan import UpdatePlan, infer_plan, sequence_lengths
from rlframe.calling.background import BackgroundCall
from rlframe.errors import ConfigError, TrainingError
from rlframe.interfaces.checkpoint import AfterGeneration, HandedOver, Transport
from rlframe.interfaces.model import EngineSpec, ModelEngine, UpdateResult
from rlframe.interfaces.strategy import RankInfo, Strategy
from rlframe.learning.advantages import checked_columns
from rlframe.weights.checksums import Query, checksums
from rlframe.weights.layout import Layout, Plan
from rlframe_strategies.hand_over import HandOver
from rlframe_strategies.minibatch import MiniBatch, micro_of
from rlframe_strategies.retokenise import Retokeniser

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.weights.adapters import Adapters

__all__ = ["CausalLMEngine"]

_PER_ROW = ("scores",)
_MOST_SKIPPED = 20
"""Skipped optimiser steps in a row after which the run is ended."""


class CausalLMEngine(ModelEngine):
    """One role on one rank.

    Losses, gradients and metrics are those of the whole mini-batch, however it is split: each
    term's denominator is counted before the first micro-batch, over all ranks.
    """

    def __init__(self, rank: RankInfo) -> None:
        super().__init__(rank)
        self._skipped_in_a_row = 0
        self._learned = self._attached = False
        self._own: Strategy | None = None
        self._writer: BackgroundCall[None] | None = None
        self._hand_overs: dict[str, HandOver] = {}

    def setup(self, spec: EngineSpec) -> None:
        """See :class:`ModelEngine`."""
        self._spec = spec
        self._algorithm = spec.algorithm.load()(spec.algorithm.config)
        if not spec.base_of:
            self._own = spec.strategy.load()(spec.strategy.config, self.rank)
            self._own.build(spec.model)
        self._retokeniser = None
        if spec.tokens_of:
            self._retokeniser = Retokeniser.between(spec.tokens_of, spec.model.path)

    @property
    def _strategy(self) -> Strategy:
        """This role's own; or another role's model without its adapters, once that is there."""
        if self._own is None:
            self._own = self.peers[self._spec.base_of]._strategy.without_adapters()
        return self._own

    def infer(self, batch: Batch) -> Mapping[str, Packed]:
        """See :class:`ModelEngine`."""
        outputs = self._spec.role.outputs
        if self._retokeniser is not None:
            batch = self._retokeniser(batch)
        micros = self._even(batch)
        parts: dict[str, list[Packed]] = {name: [] for name in outputs}
        for rows in micros:
            micro = micro_of(batch, rows, ("prompt_ids", "response_ids", "response_mask"))
            out = self._strategy.forward(micro, tuple(outputs))
            for name in outputs:
                parts[name].append(_pack(name, out.get(name), batch, rows))
        back = np.argsort(np.concatenate(micros), kind="stable")
        return {column: Packed.concat(parts[n]).take(back) for n, column in outputs.items()}

    def advantages(self, batch: Batch) -> Mapping[str, Packed]:
        """See :class:`ModelEngine`."""
        mine = batch.select(batch.columns)
        mine.reduce = self._strategy.reduce
        return checked_columns(self._algorithm, mine)

    def update(self, batch: Batch, plan: UpdatePlan) -> UpdateResult:
        """See :class:`ModelEngine`."""
        self._look_beside()
        totals: dict[str, list[float]] = {}
        skipped: list[str] = []
        for number, step in enumerate(plan.minibatches):
            (rows,) = step.micros
            mini = MiniBatch(self._spec, self._algorithm, self._strategy, batch, rows)
            self._strategy.forward_backward(mini.micros, self._spec.role.computes, mini.loss)
            lr = self._strategy.learning_rate()
            norm = self._strategy.step(self._spec.max_grad_norm)
            figures = mini.figures() | {"grad_norm": norm, "lr": lr}
            self._check_learns(mini)
            if np.isfinite(norm):
                self._skipped_in_a_row = 0
                for name, value in figures.items():
                    totals.setdefault(name, []).append(value)
            else:
                skipped.append(self._skip(number, figures))
        metrics = {name: float(np.mean(values)) for name, values in totals.items()}
        metrics["skipped_steps"] = float(len(skipped))
        return UpdateResult(metrics, len(plan.minibatches) - len(skipped), tuple(skipped))

    def evaluate(self, batch: Batch, plan: UpdatePlan) -> Mapping[str, float]:
        """See :class:`ModelEngine`."""
        self._look_beside()
        (rows,) = plan.minibatches[0].micros
        mini = MiniBatch(self._spec, self._algorithm, self._strategy, batch, rows)
        for micro in mini.micros:
            out = self._strategy.forward(micro, self._spec.role.computes)
            with torch.no_grad():
                mini.loss(out, micro)
        return mini.figures()

    def layout(self) -> Layout:
        """See :class:`ModelEngine`."""
        return self._strategy.layout()

    def prepare_hand_over(
        self,
        target: str,
        plan: Plan,
        copy: bool,
        bucket_mib: int,
        after: AfterGeneration = "keep",
    ) -> None:
        """See :class:`ModelEngine`."""
        self._hand_overs[target] = HandOver(
            self.peers[target], self._strategy, plan, copy=copy, bucket_mib=bucket_mib, after=after
        )

    def hand_over(self, target: str, version: int) -> HandedOver:
        """See :class:`ModelEngine`."""
        done = self._hand_overs[target].publish(version)
        return replace(done, extra_bytes=done.extra_bytes + self._strategy.extra_bytes)

    def listen_for_replicas(self, transport: Transport) -> Any:
        """See :class:`ModelEngine`."""
        return transport.listen(self.rank)

    def stage_weights(self, transport: Transport, plan: Plan, version: int, full: bool) -> Any:
        """See :class:`ModelEngine`."""
        return transport.stage(plan, self.rank.rank, version, self._strategy.views(), full=full)

    def checksums(self, queries: Sequence[Query]) -> list[int]:
        """See :class:`ModelEngine`."""
        return checksums(queries, self._strategy.views())

    def stage_part(
        self,
        transport: Transport,
        plan: Plan,
        version: int,
        full: bool,
        part: Literal["base", "adapters"],
    ) -> Any:
        """See :class:`ModelEngine`."""
        mine = self._strategy
        views = mine.base_views() if part == "base" else mine.adapter_views()
        return transport.stage(plan, self.rank.rank, version, views, full=full)

    def phase(self, phase: Literal["train", "generate", "idle"]) -> None:
        """See :class:`ModelEngine`."""
        if phase == "idle":
            self._strategy.offload()
        else:
            self._strategy.onload()
        for one in self._hand_overs.values():
            if phase == "generate":
                one.ready()
            else:
                one.rest()
        if phase != "generate" and any(one.gives_back for one in self._hand_overs.values()):
            self._strategy.release_views()

    def save(self, directory: Path) -> None:
        """See :class:`ModelEngine`."""
        self._strategy.save(directory)

    def begin_save(self, directory: Path) -> None:
        """See :class:`ModelEngine`."""
        self.end_save()
        try:
            write = self._strategy.staged_save(directory)
        except NotImplementedError:
            self._strategy.save(directory)
        else:
            self._writer = BackgroundCall(write)

    def end_save(self) -> None:
        """See :class:`ModelEngine`."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.result()

    def load(self, directory: Path) -> None:
        """See :class:`ModelEngine`."""
        self._strategy.load(directory)

    def export(self, directory: Path) -> None:
        """See :class:`ModelEngine`."""
        self._strategy.export(directory)

    def export_adapters(self, directory: Path) -> None:
        """See :class:`ModelEngine`."""
        self._strategy.export_adapters(directory)

    def adapters(self) -> Adapters | None:
        """See :class:`ModelEngine`."""
        return self._strategy.adapters()

    def close(self) -> None:
        """See :class:`ModelEngine`."""
        if self._own is not None:
            self._own.close()

    def _look_beside(self) -> None:
        """Let the strategy see the model that a divergence is measured from, once."""
        form = self._spec.role.divergence
        if form is None or self._attached:
            return
        peer = self.peers.get(form.role)
        if not isinstance(peer, CausalLMEngine):
            raise ConfigError(
                f"role '{self._spec.role.name}' is measured against '{form.role}' on the same "
                f"devices: set roles.{form.role}.pool to its pool, with the same strategy"
            )
        self._strategy.attach(peer._strategy, form)
        self._attached = True

    def _even(self, batch: Batch) -> list[NDArray[np.int64]]:
        """Micro-batches of this rank's rows, as many as on the rank that needs most."""
        lengths = sequence_lengths(batch)
        micros = list(infer_plan(lengths, self._spec.tokens_per_microbatch).micros[0])
        most = int(self._strategy.reduce(torch.tensor(float(len(micros))), "max"))
        return micros + [np.zeros(0, np.int64)] * (most - len(micros))

    def _check_learns(self, mini: MiniBatch) -> None:
        """A later mini-batch without a gradient may be meant, one at the start is a mistake.

        Only the last pipeline stage sees the loss.
        """
        mesh = self._strategy.mesh
        self._learned |= mini.differentiable or mesh.pp_rank(self.rank.rank) < mesh.pp - 1
        if not self._learned:
            role, name = self._spec.role.name, type(self._algorithm).__name__
            raise TrainingError(
                f"the loss of role '{role}' does not depend on what its model computes, so that "
                f"nothing would be learned: {name}.loss must use out.logprobs (or values, scores) "
                "with their gradient, in a Term whose coef is not 0"
            )

    def _skip(self, number: int, figures: Mapping[str, float]) -> str:
        self._skipped_in_a_row += 1
        odd = [name for name, value in figures.items() if not np.isfinite(value)]
        reason = f"optimiser step {number + 1} skipped: {', '.join(odd)} not finite"
        if self._skipped_in_a_row >= _MOST_SKIPPED:
            raise TrainingError(
                f"role '{self._spec.role.name}': {_MOST_SKIPPED} optimiser steps in a row were "
                f"skipped; the last: {reason}. Lower optim.lr, or look at the rewards and losses"
            )
        return reason


def _pack(name: str, values: Tensor | None, batch: Batch, rows: NDArray[np.int64]) -> Packed:
    assert values is not None, f"the strategy computed no '{name}'"
    dense = values.detach().float().cpu().numpy()
    if name in _PER_ROW:
        return Packed(dense)
    return Packed.from_padded(dense, batch.lengths("response_ids")[rows])
