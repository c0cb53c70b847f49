from __future__ import annotations

import math

import pytest
import torch

from rlframe.config import OptimConfig
from rlframe.errors import ConfigError
from rlframe_strategies.optim import Optimiser, lr_ratio, squared_norm


def rates(total: int, **options: object) -> list[float]:
    config = OptimConfig(**options)  # type: ignore[arg-type]
    return [lr_ratio(step, total, config) for step in range(total)]


def test_constant_after_warmup() -> None:
    assert rates(5, warmup_steps=2) == [0.5, 1, 1, 1, 1]


def test_linear_falls_from_the_warmup_to_the_last_step() -> None:
    got = rates(6, schedule="linear", warmup_steps=1, min_lr_ratio=0.2)
    assert got == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_ends_at_the_last_step() -> None:
    got = rates(5, schedule="cosine")
    assert got == pytest.approx([1, 0.5 + math.sqrt(0.5) / 2, 0.5, 0.5 - math.sqrt(0.5) / 2, 0])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_beyond_the_end_the_rate_stays(schedule: str) -> None:
    config = OptimConfig(schedule=schedule, min_lr_ratio=0.3)  # type: ignore[arg-type]
    assert lr_ratio(99, 5, config) == pytest.approx(0.3)


def test_a_run_of_one_step_and_a_warmup_longer_than_the_run() -> None:
    assert rates(1, schedule="linear", min_lr_ratio=0.5) == [0.5]
    assert rates(2, schedule="cosine", warmup_steps=4) == [0.25, 0.5]


def test_a_schedule_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optim\.schedule=linear"):
        Optimiser({}, set(), OptimConfig(schedule="linear"), 0)


def parameters() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return {
        "w": torch.randn(3, 4, generator=g),
        "norm": torch.randn(4, generator=g),
        "empty": torch.zeros(0, 4),
    }


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_equals_torch_with_decay_on_matrices_only(name: str) -> None:
    config = OptimConfig(name=name, lr=0.1, weight_decay=0.2, eps=1e-6)  # type: ignore[arg-type]
    mine, theirs = parameters(), parameters()
    optimiser = Optimiser(mine, {"w", "empty"}, config, 0)
    groups = [
        {"params": [theirs["w"]], "weight_decay": 0.2},
        {"params": [theirs["norm"]], "weight_decay": 0.0},
    ]
    reference: torch.optim.Optimizer
    if name == "adamw":
        reference = torch.optim.AdamW(groups, lr=0.1, betas=config.betas, eps=1e-6)
    else:
        reference = torch.optim.SGD(groups, lr=0.1)
    for step in range(3):
        g = torch.Generator().manual_seed(step)
        grads = {n: torch.randn(p.shape, generator=g) for n, p in mine.items()}
        optimiser.step(grads)
        for n in ("w", "norm"):
            theirs[n].grad = grads[n]
        reference.step()
    for n in ("w", "norm"):
        torch.testing.assert_close(mine[n], theirs[n])
    assert optimiser.steps == 3


def test_low_precision_weights_learn_through_float32_masters() -> None:
    weight = torch.ones(4, dtype=torch.bfloat16)
    optimiser = Optimiser({"w": weight}, set(), OptimConfig(name="sgd", lr=1e-3), 0)
    for _ in range(8):
        optimiser.step({"w": torch.ones(4, dtype=torch.bfloat16)})
    # A bfloat16 weight of 1 cannot take steps of 0.001; eight of them it must have taken.
    torch.testing.assert_close(optimiser.masters["w"], torch.full((4,), 0.992))
    assert float(weight[0]) == float(torch.tensor(0.992).bfloat16())


def test_a_weight_without_gradient_stays_and_keeps_its_count() -> None:
    weights = parameters()
    before = weights["norm"].clone()
    optimiser = Optimiser(weights, {"w"}, OptimConfig(lr=0.1, weight_decay=0.1), 0)
    optimiser.step({"w": torch.ones(3, 4)})
    assert torch.equal(weights["norm"], before)
    assert optimiser.counts() == {"w": 1, "norm": 0, "empty": 0}


def test_moving_keeps_state() -> None:
    moved, stayed = parameters(), parameters()
    optimisers = [Optimiser(p, {"w"}, OptimConfig(lr=0.1), 0) for p in (moved, stayed)]
    grads = {"w": torch.ones(3, 4), "norm": torch.ones(4)}
    for optimiser in optimisers:
        optimiser.step(grads)
    moved = {name: weight.clone() for name, weight in moved.items()}
    optimisers[0].move(moved)
    for optimiser in optimisers:
        optimiser.step({name: -2 * grad for name, grad in grads.items()})
    for name, weight in moved.items():
        assert torch.equal(weight, stayed[name])


@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 4097, 100_000])
def test_squared_norm_of_any_length(n: int) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    assert float(squared_norm(x)) == pytest.approx(float(x.double().square().sum()), rel=1e-6)


def test_squared_norm_of_many_equal_elements_is_right_where_float32_sums_stall() -> None:
    x = torch.full((30_000_000,), 1e-3)
    assert float(squared_norm(x)) == pytest.approx(30.0, rel=1e-5)


def test_squared_norm_shows_non_finite_elements() -> None:
    assert math.isnan(float(squared_norm(torch.tensor([1.0, float("nan")]))))
    assert math.isinf(float(squared_norm(torch.tensor([1.0, float("inf")]))))
