"""A conformance kit for strategies that train low-rank adapters: what they claim as "lora".

class TestMine(AdapterKit):
    strategy = "mine"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from rlframe.config import LoraConfig, ModelConfig, OptimConfig
from rlframe.interfaces.strategy import ModelSpec, RankInfo, Strategy
from rlframe.testing.adapter_reference import AdapterReference
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import random_micro, tiny_model
from rlframe.testing.strategy_reference import Reference
from rlframe.testing.strategy_runs import (
    COMPUTES,
    SEEDS,
    TEMPERATURE,
    Job,
    Kind,
    train_job,
    whole_tensors,
)

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.weights.adapters import Adapters
    from rlframe.weights.layout import Layout

__all__ = ["AdapterKit"]

LORA = LoraConfig(rank=3, alpha=6.0, targets=("q_proj", "o_proj", "up_proj"))


@dataclass(frozen=True)
class _Seen:
    """What one rank saw: adapters before and after training, weights, outputs, the base's too."""

    adapters: Adapters
    layout: Layout
    start: dict[str, Tensor]
    end: dict[str, Tensor]
    views: dict[str, Tensor]
    norms: list[float]
    after: dict[str, Tensor]
    off: dict[str, Tensor]
    shared: bool


def _run(rank: RankInfo, job: Job, lora: LoraConfig) -> _Seen:
    strategy: Strategy = job.target(job.target.Config(**job.options), rank)
    model = ModelConfig(path=str(job.path), lora=lora)
    strategy.build(ModelSpec(str(job.path), model, job.kind, job.optim, 10, TEMPERATURE))
    if job.load:
        strategy.load(job.load)
    adapters = strategy.adapters()
    assert adapters is not None, "adapters were asked for"
    start = _copies(strategy.adapter_views())
    norms = train_job(strategy, rank, job)
    views = strategy.views()
    again = strategy.views()
    shared = all(again[key].data_ptr() == view.data_ptr() for key, view in views.items())
    if job.save:
        strategy.save(job.save)
    if job.export:
        strategy.export(job.export)
    micro, computes = random_micro(seed=SEEDS[0]), COMPUTES[job.kind]
    off = strategy.without_adapters().forward(micro, computes)
    after = strategy.forward(micro, computes)
    seen = _Seen(
        adapters=adapters,
        layout=strategy.layout(),
        start=start,
        end=_copies(strategy.adapter_views()),
        views=_copies(views),
        norms=norms,
        after=_fields(after, computes),
        off=_fields(off, computes),
        shared=shared,
    )
    strategy.close()
    return seen


class AdapterKit:
    """Checks on 1 and 2 gloo processes against a float64 model with ``W + scale * up @ down``."""

    strategy: ClassVar[str]
    """Registered name, or ``pkg.mod:Class``."""
    worlds: ClassVar[tuple[int, ...]] = (1, 2)
    """Numbers of ranks to run on; more than one only where "dp" is claimed."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Fields of the strategy's Config that differ from the defaults."""
    tolerance: ClassVar[float] = 1e-5

    @pytest.fixture
    def target(self) -> type[Strategy]:
        """The class under test; skips one that does not claim "lora"."""
        from rlframe.host.host import current_host
        from rlframe.host.resolve import resolve

        found: type[Strategy] = resolve(current_host(), "strategy", self.strategy).value
        if "lora" not in found.capabilities:
            pytest.skip(f"strategy '{self.strategy}' does not claim 'lora'")
        return found

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test a number of ranks."""
        if "world" in metafunc.fixturenames:
            metafunc.parametrize("world", metafunc.cls.worlds)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """A model with tied embeddings, biases, and widths that no number of ranks divides."""
        return tiny_model(tmp_path / "model")

    def run(self, world: int, job: Job) -> list[_Seen]:
        """Run on ``world`` ranks; skips more than one where data parallelism is not claimed."""
        if world > 1 and "dp" not in job.target.capabilities:
            pytest.skip(f"strategy '{self.strategy}' does not claim 'dp'")
        seen: list[_Seen] = run_ranks(_run, world, job, LORA)
        return seen

    def close(self, got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
        """Assert that two sets of tensors agree."""
        import torch

        assert set(got) == set(expected)
        for name, tensor in got.items():
            wanted, near = expected[name].detach().double(), self.tolerance
            torch.testing.assert_close(
                tensor.double(), wanted, rtol=near, atol=near, msg=partial("{}\n{}".format, name)
            )

    @pytest.mark.parametrize("kind", ["policy", "value"])
    def test_two_steps_equal_the_reference(
        self, target: type[Strategy], path: Path, world: int, kind: Kind, tmp_path: Path
    ) -> None:
        """Gradients, effective weights, outputs; the base is left alone; the export is merged."""
        folder = tmp_path / "exported"
        seen = self.run(
            world, Job(target, path, self.options, kind=kind, seeds=SEEDS, export=folder)
        )
        adapters, micro = seen[0].adapters, random_micro(seed=SEEDS[0])
        start = whole_tensors(adapters.layout, [rank.start for rank in seen])
        reference = AdapterReference.of(path, kind, TEMPERATURE, adapters, start)
        untouched = reference.outputs(micro)
        norms = [reference.step([random_micro(seed=seed)]) for seed in SEEDS]
        after = reference.outputs(micro)
        weights = reference.weights()
        for rank in seen:
            assert rank.norms == pytest.approx(norms, rel=1e-5)
            assert rank.shared, "merged weights must keep their storage"
            self.close(rank.after, _fields(after, COMPUTES[kind]))
            if kind == "policy":
                self.close(rank.off, _fields(untouched, COMPUTES[kind]))
        end = whole_tensors(adapters.layout, [rank.end for rank in seen])
        self.close(end, reference.tensors)
        merged = whole_tensors(seen[0].layout, [rank.views for rank in seen])
        self.close(merged, weights)
        if kind == "policy":
            self.close(Reference(folder).named_parameters(), weights)

    def test_continues_on_another_number_of_ranks(
        self, target: type[Strategy], path: Path, world: int, tmp_path: Path
    ) -> None:
        """A snapshot holds what is trained, and any number of ranks goes on from it."""
        optim = OptimConfig(lr=0.01, eps=1e-3, schedule="cosine")
        folder = tmp_path / "snapshot"
        job = Job(target, path, self.options, optim=optim)
        self.run(world, replace(job, save=folder))
        written = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        whole = sum(file.stat().st_size for file in path.glob("*.safetensors"))
        assert written < whole + 20_000 * world, "weights that are not trained were saved"
        worlds = self.worlds if "dp" in target.capabilities else (1,)
        other = worlds[(worlds.index(world) + 1) % len(worlds)]
        resumed = self.run(other, replace(job, load=folder, seeds=SEEDS[1:]))
        unbroken = self.run(other, replace(job, seeds=SEEDS))
        ends = [
            whole_tensors(seen[0].layout, [rank.views for rank in seen])
            for seen in (resumed, unbroken)
        ]
        self.close(ends[0], ends[1])


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def _fields(out: Any, computes: Sequence[str]) -> dict[str, Tensor]:
    return {name: out.get(name) for name in computes}
