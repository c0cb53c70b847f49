"""Gradients summed in buckets, whoever used what; weights that others share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from rlframe.algorithm import Output
from rlframe.config import ModelConfig, OptimConfig
from rlframe.interfaces.strategy import ModelSpec, RankInfo, Strategy
from rlframe.testing.dist import join, run_ranks
from rlframe.testing.models import random_micro, tiny_model
from rlframe_plugins.resharders.zero_redundancy import ZeroRedundancy
from rlframe_plugins.rollouts.torch.weights import _joined
from rlframe_strategies.ddp import DDPStrategy
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.gradient_sum import GradientSum
from rlframe_strategies.single import SingleStrategy

pytestmark = pytest.mark.dist

ADAM = OptimConfig(lr=0.01, eps=1e-3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def build(of: type[Strategy], path: Path, rank: RankInfo, **options: Any) -> Any:
    strategy = of(of.Config(**options.pop("config", {})), rank)  # type: ignore[attr-defined]
    model = ModelConfig(path=str(path), **options.pop("model", {}))
    strategy.build(ModelSpec(str(path), model, optim=ADAM, optim_steps=10, **options))
    return strategy


def loss(out: Output, micro: Any) -> torch.Tensor:
    total: torch.Tensor = (out.logprobs * micro["weights"]).sum()
    return total


# --- buckets ----------------------------------------------------------------------------------


class Layers(nn.Module):
    """Four layers of which a pass uses some."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor, used: str) -> torch.Tensor:
        for number in used:
            x = self.layers[int(number)](x)
        return x.square().sum()


def summed(rank: RankInfo, cases: list[Any], sizes: tuple[int, ...]) -> Any:
    """A rank's gradients of every case, for every size of bucket."""
    join(rank)
    return [[sums_of(rank, *case, size) for size in sizes] for case in cases]


def sums_of(rank: RankInfo, passes: dict[int, list[str]], again: list[str], size: int) -> Any:
    """A rank's gradients over its passes, those of ``again`` in a second call."""
    layers = Layers()
    sums = GradientSum(dict(layers.named_parameters()), rank=rank.rank, bucket_bytes=size)
    x = torch.full((1, 3), float(rank.rank + 1))
    for uses in (passes[rank.rank], again):
        if uses is again and not again:
            continue
        sums.begin()
        for used in uses[:-1]:
            layers(x, used).backward()
        with sums.last_pass():
            for used in uses[-1:]:
                layers(x, used).backward()
    found = {name: grad.clone() for name, grad in sums.gradients().items()}
    sums.clear()
    assert all(p.grad is None for p in layers.parameters())
    return found


def expected(passes: dict[int, list[str]], again: list[str]) -> dict[str, torch.Tensor]:
    layers = Layers()
    for rank, uses in passes.items():
        x = torch.full((1, 3), float(rank + 1))
        for used in (*uses, *again):
            layers(x, used).backward()
    return {n: p.grad for n, p in layers.named_parameters() if p.grad is not None}


CASES: dict[int, list[tuple[dict[int, list[str]], list[str]]]] = {
    2: [
        ({0: ["0", "013"], 1: ["10"]}, []),
        ({0: ["3210", "1"], 1: []}, []),
        ({0: ["01"], 1: ["23"]}, ["1", "3"]),
    ],
    3: [({0: [], 1: ["12", "3"], 2: ["1"]}, ["20"])],
}


@pytest.mark.parametrize("world", [2, 3])
def test_a_sum_waits_for_nobody_who_did_not_use_a_parameter(world: int) -> None:
    cases = CASES[world]
    found = run_ranks(summed, world, cases, (1, 60, 10_000), timeout_s=60)
    for number, case in enumerate(cases):
        wanted = expected(*case)
        for mine in (sums for rank in found for sums in rank[number]):
            assert set(mine) == set(wanted)
            for name, gradient in wanted.items():
                torch.testing.assert_close(mine[name], gradient)
        for first, *others in zip(*(rank[number] for rank in found), strict=True):
            for other in others:
                assert all(torch.equal(first[name], other[name]) for name in first)


def overlapped(rank: RankInfo) -> list[str]:
    """What happens in a backward pass, in order."""
    join(rank)
    events: list[str] = []
    layers = Layers()
    sums = GradientSum(dict(layers.named_parameters()), rank=rank.rank, bucket_bytes=1)
    plain = dist.all_reduce

    def counted(*args: Any, **options: Any) -> Any:
        events.append("send")
        return plain(*args, **options)

    dist.all_reduce = counted
    x = torch.ones(1, 3, requires_grad=True)
    x.register_hook(lambda _: events.append("end"))  # type: ignore[no-untyped-call]
    for _ in range(3):
        layers(x, "0123").backward()
    events.clear()
    sums.begin()
    layers(x, "0123").backward()
    with sums.last_pass():
        layers(x, "0123").backward()
    sums.clear()
    return events


def test_buckets_are_sent_once_and_while_the_last_pass_still_runs() -> None:
    for events in run_ranks(overlapped, 2):
        assert events[0] == "end"
        assert events[1] == "send"
        assert events.count("send") == 8
        assert events.index("end", 1) > 4


# --- the strategy -----------------------------------------------------------------------------


def in_bf16(rank: RankInfo, path: Path, reduce_dtype: str) -> Any:
    strategy = build(
        DDPStrategy,
        path,
        rank,
        model={"dtype": "bfloat16"},
        config={"reduce_dtype": reduce_dtype, "packing": "off"},
    )
    strategy.forward_backward([random_micro(seed=rank.rank)], ("logprobs",), loss)
    before = {n: v.clone() for n, v in strategy.views().items()}
    grads = {n: g.clone() for n, g in strategy.gradients().items()}
    strategy.step(1.0)
    changed = any(not torch.equal(before[n], v) for n, v in strategy.views().items())
    strategy.close()
    return grads, changed


def test_low_precision_can_be_summed_in_float32(path: Path) -> None:
    for (low, moved), (high, moved_too) in zip(
        run_ranks(in_bf16, 2, path, "none"), run_ranks(in_bf16, 2, path, "float32"), strict=True
    ):
        assert moved
        assert moved_too
        assert {g.dtype for g in low.values()} == {torch.bfloat16}
        assert {g.dtype for g in high.values()} == {torch.float32}
        for name, gradient in high.items():
            torch.testing.assert_close(low[name].float(), gradient, rtol=0.02, atol=0.05)


def saved(rank: RankInfo, of: type[Strategy], path: Path, folder: Path, source: Path | None) -> Any:
    """Load where asked, take a step, save; the weights as they are then."""
    strategy = build(of, path, rank)
    if source is not None:
        strategy.load(source)
    strategy.forward_backward([random_micro(seed=rank.rank)], ("logprobs",), loss)
    strategy.step(1.0)
    strategy.save(folder)
    views = {n: v.clone() for n, v in strategy.views().items()}
    strategy.close()
    return views


def loaded(rank: RankInfo, of: type[Strategy], path: Path, folder: Path) -> Any:
    strategy = build(of, path, rank)
    strategy.load(folder)
    views = {n: v.clone() for n, v in strategy.views().items()}
    moments = {n: m.clone() for n, m in strategy.optimiser.state()["exp_avg"].items()}
    strategy.close()
    return views, moments


def test_a_snapshot_is_written_once_and_read_by_every_strategy(path: Path, tmp_path: Path) -> None:
    views = run_ranks(saved, 2, DDPStrategy, path, tmp_path / "a", None)
    sizes = [(tmp_path / "a" / f"rank-0000{r}.safetensors").stat().st_size for r in (0, 1)]
    assert sizes[1] < 10_000 < sizes[0]
    for name, view in views[0].items():
        assert torch.equal(view, views[1][name])
    (read, moments), *_ = run_ranks(loaded, 1, SingleStrategy, path, tmp_path / "a")
    for name, view in views[0].items():
        assert torch.equal(read[name], view)
    assert any(bool(m.any()) for m in moments.values())
    run_ranks(saved, 2, FSDPStrategy, path, tmp_path / "b", tmp_path / "a")
    ((alone, _),) = run_ranks(loaded, 1, SingleStrategy, path, tmp_path / "b")
    for mine, _ in run_ranks(loaded, 2, DDPStrategy, path, tmp_path / "b"):
        for name, view in alone.items():
            assert torch.equal(mine[name], view)


def shares(rank: RankInfo, path: Path) -> bool:
    """Whether a rollout engine that wants every tensor whole needs no copy, now and later."""
    strategy = build(DDPStrategy, path, rank)
    plan = ZeroRedundancy(ZeroRedundancy.Config()).plan(strategy.layout(), strategy.layout())
    before = {name: view.data_ptr() for name, view in strategy.views().items()}
    strategy.forward_backward([random_micro(seed=rank.rank)], ("logprobs",), loss)
    strategy.step(1.0)
    same = {name: view.data_ptr() for name, view in strategy.views().items()} == before
    attn = "model.layers.0.self_attn."
    fused = _joined([strategy.views()[f"{attn}{one}_proj.weight"] for one in "qkv"])
    strategy.close()
    return plan.shared and same and fused is not None


def test_a_rollout_engine_beside_shares_the_storage(path: Path) -> None:
    assert all(run_ranks(shares, 2, path))
