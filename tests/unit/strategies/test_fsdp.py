from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from rlframe.algorithm import Output
from rlframe.config import ModelConfig, OptimConfig
from rlframe.errors import ConfigError, TrainingError
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import random_micro, tiny_model
from rlframe.weights.layout import Layout, ParamInfo
from rlframe_strategies.fsdp import FSDPStrategy, dim0_layout
from rlframe_strategies.groups import ProcessGroup
from rlframe_strategies.module import LanguageModel

pytestmark = pytest.mark.dist

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def build(
    path: Path,
    rank: RankInfo | None = None,
    kind: Any = "policy",
    of: type[FSDPStrategy] = FSDPStrategy,
    **options: Any,
) -> FSDPStrategy:
    strategy = of(of.Config(**options), rank or RankInfo())
    optim = OptimConfig(name="sgd", lr=0.05)
    strategy.build(ModelSpec(str(path), ModelConfig(path=str(path)), kind=kind, optim=optim))
    return strategy


def loss(out: Output, micro: Any) -> torch.Tensor:
    total: torch.Tensor = (out.logprobs * micro["weights"]).sum()
    return total


def train(strategy: FSDPStrategy, micros: list[Any]) -> float:
    strategy.forward_backward(micros, ("logprobs",), loss)
    return strategy.step(1.0)


@pytest.fixture
def alone(path: Path) -> Iterator[FSDPStrategy]:
    strategy = build(path)
    yield strategy
    strategy.close()


def test_one_rank_holds_everything_so_that_a_rollout_engine_can_share_it(
    alone: FSDPStrategy,
) -> None:
    assert alone.layout().same_boxes(Layout.full(alone.params))
    before = {name: view.data_ptr() for name, view in alone.views().items()}
    values = alone.views()["model.norm.weight"].clone()
    train(alone, [random_micro()])
    alone.forward(random_micro(), ("logprobs",))
    assert {name: view.data_ptr() for name, view in alone.views().items()} == before
    assert not torch.equal(alone.views()["model.norm.weight"], values)


def test_a_pass_sees_weights_that_were_written_into_the_views(alone: FSDPStrategy) -> None:
    before = alone.forward(random_micro(), ("logprobs",)).logprobs
    with torch.no_grad():
        for name in ("model.norm.weight", "model.embed_tokens.weight"):
            alone.views()[name].mul_(1.5)
    assert not torch.allclose(before, alone.forward(random_micro(), ("logprobs",)).logprobs)


def test_closing_leaves_the_group_when_the_last_one_closes(path: Path) -> None:
    first, second = build(path), build(path, kind="value")
    first.close()
    assert dist.is_initialized()
    train_value = second.forward(random_micro(), ("values",)).values
    assert train_value.shape == (6, 9)
    second.close()
    assert not dist.is_initialized()


def test_a_group_that_someone_else_made_is_used_and_left_alone() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(TrainingError, match="rank 0 of a group of 1"):
            ProcessGroup(RankInfo(rank=1, world=2, init_method="tcp://localhost:1"), CPU)
        ProcessGroup(RankInfo(), CPU).leave()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_ranks_that_cannot_find_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="init_method"):
        ProcessGroup(RankInfo(rank=0, world=2), CPU)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_layout_of_uneven_and_small_parameters(world: int) -> None:
    params = {"a": ParamInfo((7, 3), "float32"), "b": ParamInfo((1,), "float32")}
    layout = dim0_layout(params, world)
    for name, info in params.items():
        rows = [p.box for pieces in layout.ranks for p in pieces if p.name == name]
        ends = [box.offset[0] + box.shape[0] for box in rows]
        assert [box.offset[0] for box in rows] == [0, *ends[:-1]]
        assert ends[-1] == info.shape[0]
        expected = torch.zeros(info.shape[0]).chunk(world)
        assert [box.shape[0] for box in rows if box.size] == [len(c) for c in expected]


class WithUnused(FSDPStrategy):
    """A parameter that no rank uses."""

    def place(self, module: LanguageModel) -> None:
        module.lm.unused = nn.Parameter(torch.ones(3))
        self.params["unused"] = ParamInfo((3,), "float32")
        super().place(module)


def test_parameters_without_a_gradient_break_nothing(path: Path) -> None:
    def fn(rank: RankInfo) -> tuple[float, dict[str, torch.Tensor]]:
        strategy = build(path, rank, of=WithUnused)
        strategy.forward_backward([random_micro()], ("logprobs",), loss)
        norm = strategy.step(1.0)
        views = {name: view.clone() for name, view in strategy.views().items()}
        strategy.close()
        return norm, views

    plain = build(path)
    norm = train(plain, [random_micro(), random_micro()])
    plain.close()
    for got, views in run_ranks(fn, 2):
        assert got == pytest.approx(norm, rel=1e-5)
        assert bool((views["unused"] == 1).all())


def test_only_some_ranks_have_a_loss_with_gradient(path: Path) -> None:
    def fn(rank: RankInfo) -> float:
        def some(out: Output, micro: Any) -> torch.Tensor:
            return loss(out, micro) if rank.rank == 0 else torch.zeros(())

        strategy = build(path, rank)
        strategy.forward_backward([random_micro()], ("logprobs",), some)
        norm = strategy.step(1.0)
        strategy.close()
        return norm

    plain = build(path)
    norm = train(plain, [random_micro()])
    plain.close()
    assert run_ranks(fn, 2) == pytest.approx([norm, norm], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"cpu_offload": True}, 1e-6),
        ({"param_dtype": "bfloat16", "reduce_dtype": "float32"}, 0.1),
        ({"param_dtype": "bfloat16"}, 0.1),
        ({"param_dtype": "bfloat16", "tp": 2}, 0.1),
    ],
)
def test_options(path: Path, options: dict[str, Any], tolerance: float) -> None:
    def fn(rank: RankInfo) -> tuple[float, torch.dtype]:
        strategy = build(path, rank, **options)
        first = strategy.mesh.dp_rank(rank.rank) == 0
        norm = train(strategy, [random_micro()] if first else [random_micro()[:0]])
        kinds = {view.dtype for view in strategy.views().values()}
        strategy.close()
        return norm, kinds.pop()

    plain = build(path)
    norm = train(plain, [random_micro()])
    plain.close()
    for got, dtype in run_ranks(fn, 2):
        assert got == pytest.approx(norm, rel=tolerance)
        assert dtype == torch.float32


def test_a_forward_pass_on_some_ranks_without_rows(path: Path) -> None:
    def fn(rank: RankInfo) -> tuple[int, ...]:
        strategy = build(path, rank)
        micro = random_micro()
        out = strategy.forward(micro if rank.rank else micro[:0], ("logprobs",))
        strategy.close()
        return tuple(out.logprobs.shape)

    assert run_ranks(fn, 2) == [(0, 9), (6, 9)]
