"""One optimiser step's rows on one rank: micro-batches, denominators, loss shares, figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rlframe.algorithm import Algorithm, Output
from rlframe.asking import ask_atoms, ask_mapping
from rlframe.batching.batch import Batch
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.strategy import Strategy
from rlframe.learning.loss import add_loss_mask, count_denominators, loss_share
from rlframe_strategies.rollout_gap import RolloutGap

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

__all__ = ["MiniBatch", "micro_of"]

Rows = NDArray[np.int64]


def micro_of(batch: Batch, rows: Rows, names: Sequence[str] | None = None) -> TensorDict:
    """The given rows as a TensorDict with a ``loss_mask``: sampled tokens of rows trained on."""
    chosen = batch.take(rows)
    micro = chosen.to_tensordict(names)
    return add_loss_mask(micro) if "train" in micro else micro


class MiniBatch:
    """Counts every denominator over all ranks when it is made, before any micro-batch runs.

    ``differentiable``, known after :meth:`figures`: whether a loss of any rank depended on the
    model's outputs.
    """

    differentiable = False

    def __init__(
        self,
        spec: EngineSpec,
        algorithm: Algorithm,
        strategy: Strategy,
        batch: Batch,
        rows: Sequence[Rows],
    ) -> None:
        self._spec, self._algorithm, self._strategy = spec, algorithm, strategy
        self._schema = batch.schema
        self.micros = [micro_of(batch, part) for part in rows]
        mine = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        atoms = ask_atoms(algorithm, batch)
        self._denominators = count_denominators(
            micro_of(batch, mine, _mask_sources(batch, algorithm)),
            tuple(dict.fromkeys((*algorithm.masks, "loss_mask"))),
            strategy.reduce,
            rows=len(mine),
            atoms=None if atoms is None else len(np.unique(atoms[mine])),
        )
        self._sums: dict[str, Tensor] = {}
        self._gap = RolloutGap() if self._samples(batch) else None
        self._differentiable = False
        if type(algorithm).minibatch is not Algorithm.minibatch:
            self._add_minibatch_columns()

    def loss(self, out: Output, micro: TensorDict) -> Tensor:
        """This micro-batch's share of the loss; its figures are added up.

        A column that this role's forward pass gives and that no pass before the update wrote is
        taken from ``out``: with one optimiser step a batch both are the same.
        """
        micro = self._with_outputs(micro, out)
        share, figures = loss_share(
            self._algorithm,
            self._spec.role.name,
            out,
            micro,
            self._denominators,
            fixed_length=self._spec.max_response_tokens,
            schema=self._schema,
        )
        self._differentiable |= share.requires_grad
        if self._gap is not None:
            bypassed = self._algorithm.config.bypasses
            trainer = out.logprobs if bypassed else micro["old_logprobs"]
            self._gap.add(trainer, micro, self._denominators)
        figures.setdefault("loss", share.detach().double())
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, torch.zeros((), dtype=torch.float64)) + value
        return share

    def figures(self) -> dict[str, float]:
        """Every term and metric over the whole mini-batch and all ranks."""
        names = self._names()
        zero = torch.zeros((), dtype=torch.float64)
        mine = [torch.tensor(float(self._differentiable), dtype=torch.float64)]
        mine += [self._sums.get(name, zero).cpu() for name in names]
        learns, *total = self._strategy.reduce(torch.stack(mine)).tolist()
        self.differentiable = bool(learns)
        gap = {} if self._gap is None else self._gap.figures(self._strategy.reduce)
        return dict(zip(names, total, strict=True)) | gap

    def _names(self) -> list[str]:
        """The figures of all ranks, sorted: one without rows, or with other terms, adds zeros."""
        mine, mesh = sorted(self._sums), self._strategy.mesh
        if mesh.dp == 1:
            return mine
        text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
        width = self._strategy.reduce(torch.tensor(float(len(text)), dtype=torch.float64), "max")
        table = torch.zeros(mesh.dp, int(width), dtype=torch.float64)
        rank = mesh.dp_rank(self._strategy.rank.rank)
        table[rank, : len(text)] = torch.from_numpy(text.astype(np.float64))
        rows = self._strategy.reduce(table).byte().numpy()
        return sorted({name for row in rows for name in json.loads(bytes(row[row > 0]))})

    def _samples(self, batch: Batch) -> bool:
        """Whether this role's log-probabilities are those that a sampler should have had."""
        policy = self._spec.role.name == "policy" and "rollout_logprobs" in batch
        known = (*batch.columns, *self._spec.role.outputs.values())
        return policy and "old_logprobs" in known

    def _with_outputs(self, micro: TensorDict, out: Output) -> TensorDict:
        micro = micro.copy()
        for name, column in self._spec.role.outputs.items():
            if column not in micro:
                micro[column] = getattr(out, name).detach()
        return micro

    def _add_minibatch_columns(self) -> None:
        """Columns that need all outputs of the mini-batch: a pass without gradient, gathered."""
        computes = self._spec.role.computes
        outs = [self._strategy.forward(micro, computes) for micro in self.micros]
        scored = [self._with_outputs(m, o) for m, o in zip(self.micros, outs, strict=True)]
        sizes = [len(micro) for micro in self.micros]
        offset, total = self._place(sum(sizes))
        whole = self._gather(scored, offset, total)
        fields = {n: [{n: out.get(n)} for out in outs] for n in computes}
        out = Output(**{n: self._gather(part, offset, total)[n] for n, part in fields.items()})
        made = ask_mapping(self._algorithm, "minibatch", out, _tensordict(whole, total))
        for name, column in made.items():
            mine = torch.split(column[offset : offset + sum(sizes)], sizes)
            for micro, part in zip(self.micros, mine, strict=True):
                micro[name] = part[:, : micro["response_ids"].shape[1]]

    def _place(self, count: int) -> tuple[int, int]:
        """This rank's first row among the rows of all ranks, and how many those are."""
        mesh = self._strategy.mesh
        counts = torch.zeros(mesh.dp, dtype=torch.float64)
        mine = mesh.dp_rank(self._strategy.rank.rank)
        counts[mine] = count
        counts = self._strategy.reduce(counts)
        return int(counts[:mine].sum()), int(counts.sum())

    def _gather(
        self, parts: Sequence[Mapping[str, Tensor]] | Sequence[TensorDict], offset: int, total: int
    ) -> dict[str, Tensor]:
        """Rows of all micro-batches and ranks, padded to the widest: a sum with zeros elsewhere."""
        out: dict[str, Tensor] = {}
        names = [n for n in parts[0].keys() if n != "scalars"]  # noqa: SIM118
        for name in names:
            rows = [part[name].double().cpu() for part in parts]
            wide = [max(r.shape[axis] for r in rows) for axis in range(1, rows[0].dim())]
            shape = self._strategy.reduce(torch.tensor([0.0, *map(float, wide)]), "max")[1:]
            full = torch.zeros(total, *(int(s) for s in shape), dtype=torch.float64)
            start = offset
            for r in rows:
                region = tuple(slice(0, s) for s in r.shape[1:])
                full[(slice(start, start + len(r)), *region)] = r
                start += len(r)
            dtype = parts[0][name].dtype
            out[name] = self._strategy.reduce(full).to(dtype)
        return out


def _mask_sources(batch: Batch, algorithm: Algorithm) -> tuple[str, ...]:
    wanted = dict.fromkeys(("response_ids", "response_mask", "train", *algorithm.masks))
    return tuple(name for name in wanted if name in batch)


def _tensordict(columns: dict[str, Tensor], rows: int) -> TensorDict:
    from tensordict import TensorDict

    return TensorDict(columns, batch_size=[rows])
