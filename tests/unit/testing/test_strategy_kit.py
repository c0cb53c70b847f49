"""A kit that cannot fail proves nothing: each strategy here has one fault, which it must see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlframe.testing.models import tiny_model
from rlframe.testing.strategy_kit import StrategyKit
from rlframe.weights.layout import Layout
from rlframe_strategies.boxes import SavedBoxes
from rlframe_strategies.fsdp import FSDPStrategy, _sharded
from rlframe_strategies.module import LanguageModel
from rlframe_strategies.optim import Optimiser
from rlframe_strategies.single import SingleStrategy

pytestmark = pytest.mark.dist


class Averages(FSDPStrategy):
    def place(self, module: LanguageModel) -> None:
        super().place(module)
        for part in _sharded(module):
            part.set_gradient_divide_factor(float(self.rank.world))


class ClipsByItsOwnNorm(FSDPStrategy):
    def sum_squares(self, local: torch.Tensor) -> torch.Tensor:
        return local


class SkipsEmptyMicros(FSDPStrategy):
    def forward_backward(self, micros: Any, computes: Any, loss_fn: Any) -> None:
        super().forward_backward([m for m in micros if len(m)], computes, loss_fn)


class LeavesOutARow(FSDPStrategy):
    def layout(self) -> Layout:
        layout = super().layout()
        last = replace(layout.ranks[0][0], box=replace(layout.ranks[0][0].box, shape=(1, 20)))
        return Layout(layout.params, ((last, *layout.ranks[0][1:]), *layout.ranks[1:]))


class StepsOnNan(SingleStrategy):
    def step(self, max_grad_norm: float) -> float:
        grads = {n: g.nan_to_num(0) for n, g in self.gradients().items()}
        assert self.optimiser is not None
        self.optimiser.step(grads)
        self.module.zero_grad()
        return float("nan")


class ForgetsTheOptimiser(SingleStrategy):
    def load(self, directory: Path) -> None:
        layout = self.layout()
        SavedBoxes(directory).read_into("weight", layout.ranks[0], layout, self.weights())


class KeepsOldGradients(SingleStrategy):
    def step(self, max_grad_norm: float) -> float:
        kept = {n: p.grad for n, p in self.parameters().items()}
        norm = super().step(max_grad_norm)
        for name, parameter in self.parameters().items():
            parameter.grad = kept[name]
        return norm


class IgnoresTemperature(SingleStrategy):
    def build(self, spec: Any) -> None:
        super().build(replace(spec, temperature=1.0))


class DecaysNorms(SingleStrategy):
    def build(self, spec: Any) -> None:
        super().build(spec)
        assert self.optimiser is not None
        self.optimiser = Optimiser(self.weights(), set(), spec.optim, 10)
        self.optimiser.steps = 3


class Kit(StrategyKit):
    __test__ = False
    timeout_s = 6.0


FAULTS: list[tuple[type, int, Callable[[Kit, type, Path, int], None]]] = [
    (Averages, 2, lambda k, t, p, w: k.test_two_steps_equal_the_reference(t, p, w, "policy")),
    (ClipsByItsOwnNorm, 2, Kit.test_norm_is_that_of_the_whole_gradient_and_clipping_can_be_off),
    (SkipsEmptyMicros, 2, Kit.test_ranks_without_rows_take_part),
    (LeavesOutARow, 2, Kit.test_layout_covers_every_element_once),
    (StepsOnNan, 1, Kit.test_a_non_finite_gradient_changes_nothing),
    (
        KeepsOldGradients,
        1,
        lambda k, t, p, w: k.test_two_steps_equal_the_reference(t, p, w, "score"),
    ),
    (IgnoresTemperature, 1, lambda k, t, p, w: k.test_micro_batches_do_not_matter(t, p, w, 6)),
    (DecaysNorms, 1, Kit.test_a_non_finite_gradient_changes_nothing),
    (
        ForgetsTheOptimiser,
        1,
        lambda k, t, p, w: k.test_continues_on_another_number_of_ranks(t, p, w, "policy", p.parent),
    ),
]


@pytest.mark.parametrize(
    ("target", "world", "check"), FAULTS, ids=lambda v: getattr(v, "__name__", "")
)
def test_the_kit_sees(
    target: type, world: int, check: Callable[[Kit, type, Path, int], None], tmp_path: Path
) -> None:
    path = tiny_model(tmp_path / "model")
    Kit.strategy = target.__name__
    with pytest.raises(AssertionError):
        check(Kit(), target, path, world)
