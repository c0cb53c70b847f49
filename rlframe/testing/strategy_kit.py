"""A conformance kit for strategies: subclass :class:`StrategyKit` with one name in it.

    class TestMine(StrategyKit):
        strategy = "mine"

Every check runs on 1, 2 and 4 gloo processes and compares with a plain float64 model. What a
strategy does not claim in ``capabilities`` is skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from rlframe.config import OptimConfig
from rlframe.interfaces.strategy import Strategy
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import random_micro, tiny_model
from rlframe.testing.strategy_reference import Reference, Step
from rlframe.testing.strategy_runs import (
    CLIP,
    COMPUTES,
    LR,
    SEEDS,
    TEMPERATURE,
    Job,
    Kind,
    Seen,
    run_job,
    summed_loss,
    whole_weights,
)

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["StrategyKit"]


class StrategyKit:
    """Checks that every strategy must pass."""

    strategy: ClassVar[str]
    """Registered name, or ``pkg.mod:Class``."""
    worlds: ClassVar[tuple[int, ...]] = (1, 2, 4)
    """Numbers of ranks to run on; more than one only where "dp" is claimed."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Fields of the strategy's Config that differ from the defaults."""
    tolerance: ClassVar[float] = 1e-5
    timeout_s: ClassVar[float] = 120.0

    @pytest.fixture
    def target(self) -> type[Strategy]:
        """The class under test."""
        from rlframe.host.host import current_host
        from rlframe.host.resolve import resolve

        found: type[Strategy] = resolve(current_host(), "strategy", self.strategy).value
        return found

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test a number of ranks."""
        if "world" in metafunc.fixturenames:
            metafunc.parametrize("world", metafunc.cls.worlds)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """A model with tied embeddings, biases, and widths that no number of ranks divides."""
        return tiny_model(tmp_path / "model")

    def claims(self, target: type[Strategy], capability: str) -> None:
        """Skip, and say so, what a strategy does not claim."""
        if capability not in target.capabilities:
            pytest.skip(f"strategy '{self.strategy}' does not claim '{capability}'")

    def run(self, world: int, job: Job) -> list[Seen]:
        """Run on ``world`` ranks; skips more than one where data parallelism is not claimed."""
        if world > 1:
            self.claims(job.target, "dp")
        seen: list[Seen] = run_ranks(run_job, world, job, timeout_s=self.timeout_s)
        return seen

    def job(self, target: type[Strategy], path: Path, **changes: Any) -> Job:
        """A job with this kit's options."""
        options = {**self.options, **changes.pop("options", {})}
        return Job(target, path, options, **changes)

    def close(self, got: Mapping[str, Tensor], expected: Mapping[str, Any], what: str) -> None:
        """Assert that two sets of tensors agree."""
        import torch

        assert set(got) == set(expected), what
        for name, tensor in got.items():
            torch.testing.assert_close(
                tensor.double(),
                expected[name].detach().double(),
                rtol=self.tolerance,
                atol=self.tolerance,
                msg=partial("{what}: {name}\n{}".format, what=what, name=name),
            )

    # --- one step -----------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", ["policy", "value", "score"])
    def test_two_steps_equal_the_reference(
        self, target: type[Strategy], path: Path, world: int, kind: Kind
    ) -> None:
        """Outputs, gradient norms and weights after SGD are those of a plain float64 model."""
        seen = self.run(world, self.job(target, path, kind=kind, seeds=SEEDS))
        reference = Reference(path, kind, TEMPERATURE)
        steps = []
        first = reference.outputs(random_micro(seed=SEEDS[0]))
        for rank in seen:
            self.close(rank.before, _fields(first, kind), "outputs before training")
        for seed in SEEDS:
            steps.append(reference.step([random_micro(seed=seed)], summed_loss, LR, CLIP))
        for rank in seen:
            assert rank.norms == pytest.approx([step.norm for step in steps], rel=1e-5)
        self.close(whole_weights(seen), steps[-1].weights, "weights after two steps")

    def test_norm_is_that_of_the_whole_gradient_and_clipping_can_be_off(
        self, target: type[Strategy], path: Path, world: int
    ) -> None:
        """``max_grad_norm=0`` never clips, and every rank reports the same norm."""
        seen = self.run(world, self.job(target, path, clip=0.0))
        step = _step(path, clip=0.0)
        assert step.norm > CLIP
        assert len({tuple(rank.norms) for rank in seen}) == 1
        self.close(whole_weights(seen), step.weights, "weights after an unclipped step")

    @pytest.mark.parametrize("rows", [1, 6])
    def test_micro_batches_do_not_matter(
        self, target: type[Strategy], path: Path, world: int, rows: int
    ) -> None:
        """One row at a time, or all at once."""
        step = _step(path)
        seen = self.run(world, self.job(target, path, micro_rows=rows))
        self.close(whole_weights(seen), step.weights, f"weights, {rows} rows a micro-batch")

    def test_ranks_without_rows_take_part(
        self, target: type[Strategy], path: Path, world: int
    ) -> None:
        """Empty micro-batches end in no hang and add nothing."""
        step = _step(path)
        seen = self.run(world, self.job(target, path, uneven=True))
        self.close(whole_weights(seen), step.weights, "weights with all rows on one rank")

    def test_packing_equals_padding(self, target: type[Strategy], path: Path, world: int) -> None:
        """Rows side by side give what padded rows give."""
        self.claims(target, "packing")
        runs = [
            self.run(world, self.job(target, path, options={"packing": packing}))
            for packing in ("on", "off")
        ]
        self.close(runs[0][0].before, runs[1][0].before, "outputs, packed and padded")
        self.close(whole_weights(runs[0]), whole_weights(runs[1]), "weights, packed and padded")

    def test_gradient_checkpointing_changes_nothing(
        self, target: type[Strategy], path: Path, world: int
    ) -> None:
        """Recomputed activations give the same step."""
        self.claims(target, "grad-checkpoint")
        step = _step(path)
        seen = self.run(world, self.job(target, path, checkpointing=True))
        self.close(whole_weights(seen), step.weights, "weights with gradient checkpointing")

    def test_a_non_finite_gradient_changes_nothing(
        self, target: type[Strategy], path: Path, world: int
    ) -> None:
        """The step says so by its norm; weights, schedule and the next step are untouched."""
        optim = OptimConfig(name="sgd", lr=LR, schedule="linear", warmup_steps=2)
        seen = self.run(world, self.job(target, path, poison=True, optim=optim))
        step = _step(path, lr=LR / 2)
        for rank in seen:
            assert not abs(rank.norms[0]) < float("inf")
            assert rank.norms[1] == pytest.approx(step.norm, rel=1e-5)
            assert rank.rates == pytest.approx([LR / 2])
        self.close(whole_weights(seen), step.weights, "weights after a skipped step")

    # --- where things lie -----------------------------------------------------------------------

    def test_layout_covers_every_element_once(
        self, target: type[Strategy], path: Path, world: int
    ) -> None:
        """Names and shapes are those of ``from_pretrained``; boxes of replicas do not overlap."""
        import torch

        seen = self.run(world, self.job(target, path, seeds=()))
        named = Reference(path).named_parameters()
        layout = seen[0].layout
        assert {n: p.shape for n, p in layout.params.items()} == {
            n: tuple(p.shape) for n, p in named.items()
        }
        assert all(rank.layout == layout for rank in seen)
        assert layout.world == world
        counts = {n: torch.zeros(p.shape) for n, p in layout.params.items()}
        for box in {(p.name, p.box) for pieces in layout.ranks for p in pieces}:
            counts[box[0]][box[1].slices()] += 1
        assert all(bool((count == 1).all()) for count in counts.values())
        self.close(whole_weights(seen), named, "weights as loaded")

    def test_reduce_is_over_the_ranks(self, target: type[Strategy], path: Path, world: int) -> None:
        """Sum and maximum over data-parallel ranks."""
        job = self.job(target, path, seeds=())
        options: Any = target.Config(**job.options)  # type: ignore[attr-defined]
        dp = target.mesh_of(options, world).dp
        for rank in self.run(world, job):
            assert rank.largest == dp
            assert rank.summed == dp * (dp + 1) / 2

    # --- files ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", ["policy", "value"])
    def test_continues_on_another_number_of_ranks(
        self, target: type[Strategy], path: Path, world: int, kind: Kind, tmp_path: Path
    ) -> None:
        """Saved after one AdamW step; any number of ranks does the same next step.

        What is saved beside training (here: values) holds what was there when that began.
        """
        optim = OptimConfig(lr=0.01, eps=1e-3, schedule="cosine", weight_decay=0.1)
        job = self.job(target, path, kind=kind, optim=optim)
        folder = tmp_path / "snapshot"
        self.run(world, replace(job, save=folder, beside=kind == "value"))
        worlds = self.worlds if "dp" in target.capabilities else (1,)
        other = worlds[(worlds.index(world) + 1) % len(worlds)]
        resumed = self.run(other, replace(job, load=folder, seeds=SEEDS[1:]))
        unbroken = self.run(other, replace(job, seeds=SEEDS))
        assert resumed[0].rates == unbroken[0].rates[1:]
        self.close(
            whole_weights(resumed), whole_weights(unbroken), f"from {world} to {other} ranks"
        )

    def test_export_loads_with_from_pretrained(
        self, target: type[Strategy], path: Path, world: int, tmp_path: Path
    ) -> None:
        """The folder holds the trained weights under their canonical names."""
        folder = tmp_path / "exported"
        seen = self.run(world, self.job(target, path, export=folder))
        self.close(whole_weights(seen), Reference(folder).named_parameters(), "exported weights")


def _step(path: Path, lr: float = LR, clip: float = CLIP) -> Step:
    """The reference's first step of a policy."""
    batch = random_micro(seed=SEEDS[0])
    return Reference(path, "policy", TEMPERATURE).step([batch], summed_loss, lr, clip)


def _fields(out: Output, kind: Kind) -> dict[str, Any]:
    return {name: out.get(name) for name in COMPUTES[kind]}
