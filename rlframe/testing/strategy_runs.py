"""What the strategy kit lets every rank do, and what it looks at afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlframe.config import ModelConfig, OptimConfig
from rlframe.interfaces.strategy import ModelSpec, RankInfo, Strategy
from rlframe.testing.models import random_micro

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output
    from rlframe.weights.layout import Layout

__all__ = [
    "Job",
    "Kind",
    "Seen",
    "run_job",
    "summed_loss",
    "train_job",
    "whole_tensors",
    "whole_weights",
]

Kind = Literal["policy", "value", "score", "teacher"]
COMPUTES: dict[str, tuple[str, ...]] = {
    "policy": ("logprobs", "entropy"),
    "value": ("values",),
    "score": ("scores",),
}
LR, CLIP, TEMPERATURE = 0.05, 1.0, 0.7
SEEDS = (3, 4)
"""One batch an optimiser step."""


@dataclass(frozen=True)
class Job:
    """What every rank of a run does: build, perhaps load, train on some batches, perhaps save."""

    target: Any
    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = "policy"
    optim: OptimConfig = OptimConfig(name="sgd", lr=LR)
    checkpointing: bool = False
    clip: float = CLIP
    seeds: tuple[int, ...] = SEEDS[:1]
    micro_rows: int = 2
    uneven: bool = False
    """All rows on the first data-parallel rank; the others get empty micro-batches."""
    poison: bool = False
    """A first step whose loss is NaN on the first replica."""
    load: Path | None = None
    save: Path | None = None
    beside: bool = False
    """Train on between staging what is saved and writing it, where the strategy can."""
    export: Path | None = None


@dataclass(frozen=True)
class Seen:
    """What one rank saw."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    norms: list[float]
    rates: list[float]
    views: dict[str, Tensor]
    layout: Layout
    summed: float
    largest: float


def summed_loss(out: Output, micro: TensorDict) -> Tensor:
    """A sum over rows, so that shares of micro-batches and ranks add up."""
    weights: Tensor = micro["weights"]
    if out.get("scores") is not None:
        return (out.scores * weights.sum(1) + (out.scores - 1).square()).sum()
    if out.get("values") is not None:
        wanted = weights != 0
        return ((out.values - 1).square() * wanted).sum() + (out.values * weights).sum()
    return (out.logprobs * weights).sum() + 0.1 * out.entropy.square().sum()


def _nan_loss(out: Output, micro: TensorDict) -> Tensor:
    values = next(v for n in ("logprobs", "values", "scores") if (v := out.get(n)) is not None)
    return values.sum() * float("nan")


def run_job(rank: RankInfo, job: Job) -> Seen:
    """One rank of a run; executed in a forked process."""
    strategy: Strategy = job.target(job.target.Config(**job.options), rank)
    computes = COMPUTES[job.kind]
    model = ModelConfig(path=str(job.path), gradient_checkpointing=job.checkpointing)
    spec = ModelSpec(
        str(job.path),
        model,
        kind=job.kind,
        optim=job.optim,
        optim_steps=10,
        temperature=TEMPERATURE,
    )
    strategy.build(spec)
    if job.load:
        strategy.load(job.load)
    before = _outputs(strategy, random_micro(seed=SEEDS[0]), computes)
    norms: list[float] = []
    rates: list[float] = []
    if job.poison:
        first = strategy.mesh.dp_rank(rank.rank) == 0
        poisoned = _nan_loss if first else summed_loss
        strategy.forward_backward(_micros(strategy, rank, job, SEEDS[0]), computes, poisoned)
        norms.append(strategy.step(job.clip))
    norms += train_job(strategy, rank, job, rates)
    if job.save:
        _save(strategy, rank, job, job.save)
    if job.export:
        strategy.export(job.export)
    seen = _look(strategy, rank, before, norms, rates, computes)
    strategy.close()
    return seen


def _save(strategy: Strategy, rank: RankInfo, job: Job, folder: Path) -> None:
    if not job.beside:
        strategy.save(folder)
        return
    try:
        write = strategy.staged_save(folder)
    except NotImplementedError:
        strategy.save(folder)
        return
    train_job(strategy, rank, replace(job, seeds=job.seeds[:1]))
    write()


def train_job(
    strategy: Strategy, rank: RankInfo, job: Job, rates: list[float] | None = None
) -> list[float]:
    """A step for each of the job's batches; the gradients' norms. ``rates`` gets the rates."""
    norms = []
    for seed in job.seeds:
        if rates is not None:
            rates.append(strategy.learning_rate())
        micros = _micros(strategy, rank, job, seed)
        strategy.forward_backward(micros, COMPUTES[job.kind], summed_loss)
        norms.append(strategy.step(job.clip))
    return norms


def _look(
    strategy: Strategy,
    rank: RankInfo,
    before: dict[str, Tensor],
    norms: list[float],
    rates: list[float],
    computes: Sequence[str],
) -> Seen:
    import torch

    number = torch.tensor([float(strategy.mesh.dp_rank(rank.rank)) + 1], dtype=torch.float64)
    return Seen(
        before=before,
        after=_outputs(strategy, random_micro(seed=SEEDS[0]), computes),
        norms=norms,
        rates=rates,
        views={key: view.detach().cpu().clone() for key, view in strategy.views().items()},
        layout=strategy.layout(),
        summed=float(strategy.reduce(number)),
        largest=float(strategy.reduce(number, "max")),
    )


def _outputs(strategy: Strategy, micro: TensorDict, computes: Sequence[str]) -> dict[str, Tensor]:
    out = strategy.forward(micro, computes)
    found = {name: out.get(name) for name in computes}
    return {name: values for name, values in found.items() if values is not None}


def _micros(strategy: Strategy, rank: RankInfo, job: Job, seed: int) -> list[TensorDict]:
    """This rank's share of a batch in micro-batches, equally many on every rank."""
    batch = random_micro(seed=seed)
    dp, mine = strategy.mesh.dp, strategy.mesh.dp_rank(rank.rank)
    dealt = [list(range(len(batch)))[i::dp] for i in range(dp)]
    if job.uneven:
        dealt = [list(range(len(batch))), *([] for _ in range(dp - 1))]
    most = max(-(-len(rows) // job.micro_rows) for rows in dealt)
    starts = [i * job.micro_rows for i in range(most)]
    return [batch[dealt[mine][start : start + job.micro_rows]] for start in starts]


def whole_weights(seen: Sequence[Seen]) -> dict[str, Tensor]:
    """Canonical tensors put together from every rank's views; asserts that they are covered."""
    return whole_tensors(seen[0].layout, [rank.views for rank in seen])


def whole_tensors(layout: Layout, views: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors by name from every rank's buffers; asserts that they are there, copies bit-equal."""
    import torch

    whole = {n: torch.full(p.shape, float("nan")) for n, p in layout.params.items()}
    for rank, pieces in enumerate(layout.ranks):
        for piece in pieces:
            if not piece.box.size:
                continue
            buffer = views[rank][piece.view.key]
            offset = buffer.storage_offset() + piece.view.offset
            part = buffer.as_strided(piece.box.shape, piece.view.stride, offset)
            there = whole[piece.name][piece.box.slices()]
            known = ~there.isnan()
            same = torch.equal(there[known], part.float()[known])
            assert same, f"rank {rank} holds another '{piece.name}' than a rank before it"
            there[:] = part.float()
    for name, tensor in whole.items():
        assert not tensor.isnan().any(), f"no rank holds all of '{name}'"
    return whole
