"""Low precision, and snapshots between strategy deepspeed and the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("deepspeed", reason="strategy 'deepspeed' needs deepspeed: make test-deepspeed")

from rlframe.config import OptimConfig
from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.models import random_micro, tiny_model
from rlframe.testing.strategy_reference import Reference
from rlframe.testing.strategy_runs import Job, run_job, summed_loss, whole_weights
from rlframe.weights.layout import Layout
from rlframe.weights.storage import local_view
from rlframe_strategies.deepspeed import DeepSpeedStrategy
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.single import SingleStrategy
from tests.unit.strategies.deepspeed_runs import HOST, NAMES, STAGES, build, ranks

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


# --- bf16 ---------------------------------------------------------------------------------------


def low(rank: RankInfo, path: Path, options: dict[str, Any], of: Any, folder: Path | None) -> Any:
    """Twelve small AdamW steps, too small for bfloat16 weights alone to take."""
    strategy = build(rank, path, options, of, dtype="bfloat16", optim=OptimConfig(lr=2e-5))
    norms = []
    for seed in range(12):
        rows = random_micro(seed=seed % 2)[rank.rank :: rank.world]
        strategy.forward_backward([rows[:1], rows[1:]], ("logprobs", "entropy"), summed_loss)
        norms.append(strategy.step(1.0))
    masters = strategy.optimiser.state()["master"]
    layout = strategy.state_layout()
    if folder is not None:
        strategy.save(folder)
    kept = {name: tensor.clone() for name, tensor in masters.items()}
    types = {str(view.dtype) for view in strategy.views().values()}
    strategy.close()
    return norms, kept, layout, types


def put_together(layout: Layout, parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    whole = {n: torch.full(info.shape, float("nan")) for n, info in layout.params.items()}
    for pieces, buffers in zip(layout.ranks, parts, strict=True):
        for piece in pieces:
            whole[piece.name][piece.box.slices()] = local_view(piece, buffers[piece.view.key])
    return whole


@pytest.mark.parametrize("options", [*STAGES, HOST], ids=[*NAMES, "host"])
def test_bfloat16_steps_on_float32_copies_as_single_does(
    path: Path, options: dict[str, Any]
) -> None:
    (alone,) = ranks(low, 1, path, {}, SingleStrategy, None)
    wanted = put_together(alone[2], [alone[1]])
    seen = ranks(low, 2, path, options, DeepSpeedStrategy, None)
    got = put_together(seen[0][2], [one[1] for one in seen])
    start = Reference(path).named_parameters()
    for name, tensor in got.items():
        moved, same = tensor - start[name].float(), wanted[name] - start[name].float()
        error = (moved - same).abs().mean() / same.abs().mean()
        assert error < 0.25, (name, float(error))  # AdamW turns noise of bfloat16 into signs
    for norms, _, _, types in seen:
        assert norms == pytest.approx(alone[0], rel=0.03)
        assert types == {"torch.bfloat16"}


# --- snapshots ----------------------------------------------------------------------------------

ADAM = OptimConfig(lr=0.01, eps=1e-3, schedule="cosine", weight_decay=0.1)
OTHERS = [
    (FSDPStrategy, {}, 2),
    (SingleStrategy, {}, 1),
    (DeepSpeedStrategy, {"zero": 1}, 4),
    (DeepSpeedStrategy, HOST, 2),
]


@pytest.mark.parametrize("options", STAGES, ids=NAMES)
@pytest.mark.parametrize("other", OTHERS, ids=["fsdp", "single", "zero1x4", "host"])
def test_snapshots_load_in_other_strategies_and_stages(
    path: Path, tmp_path: Path, options: dict[str, Any], other: Any
) -> None:
    """Both ways: the next AdamW step is that of an unbroken run."""
    theirs, their_options, their_world = other
    mine = Job(DeepSpeedStrategy, path, options, optim=ADAM)
    their = Job(theirs, path, their_options, optim=ADAM)
    wanted = whole_weights(ranks(run_job, 1, Job(SingleStrategy, path, optim=ADAM, seeds=(3, 4))))
    ranks(run_job, 2, replace(mine, save=tmp_path / "a", seeds=(3,)))
    there = ranks(run_job, their_world, replace(their, load=tmp_path / "a", seeds=(4,)))
    ranks(run_job, their_world, replace(their, save=tmp_path / "b", seeds=(3,)))
    back = ranks(run_job, 2, replace(mine, load=tmp_path / "b", seeds=(4,)))
    for seen in (there, back):
        for name, tensor in whole_weights(seen).items():
            torch.testing.assert_close(tensor, wanted[name], rtol=1e-5, atol=1e-5, msg=name)
