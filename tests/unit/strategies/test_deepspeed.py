"""What the kit does not ask of DeepSpeed: frozen models, resharding, sums, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("deepspeed", reason="strategy 'deepspeed' needs deepspeed: make test-deepspeed")

from rlframe.calling.protocol import Mesh
from rlframe.config import LoraConfig, ModelConfig, OptimConfig
from rlframe.errors import ConfigError
from rlframe.interfaces.strategy import ModelSpec, RankInfo, Strategy
from rlframe.testing.models import random_micro, tiny_model
from rlframe.testing.strategy_reference import Reference
from rlframe.testing.strategy_runs import summed_loss
from rlframe.weights.layout import Layout, Plan
from rlframe.weights.model_cuts import cuts_of_model
from rlframe.weights.moving import Mover
from rlframe.weights.sharding import grid_layout
from rlframe.weights.storage import local_view
from rlframe_plugins.resharders.planner import missing_moves
from rlframe_strategies.deepspeed import DeepSpeedStrategy
from tests.unit.strategies.deepspeed_runs import HOST, NAMES, SHARDED, STAGES, build, ranks

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


# --- frozen models ----------------------------------------------------------------------------


def frozen(rank: RankInfo, path: Path, options: dict[str, Any]) -> Any:
    strategy = build(rank, path, options, optim=None)
    micro = random_micro()
    empty = micro[:0] if rank.rank else micro
    outs = [strategy.forward(m, ("logprobs",)).logprobs for m in (micro, empty, micro)]
    sizes = {name: view.numel() for name, view in strategy.views().items()}
    strategy.close()
    return outs, sizes


@pytest.mark.parametrize("options", [*STAGES, HOST], ids=[*NAMES, "host"])
def test_a_frozen_model_is_for_inference_alone(path: Path, options: dict[str, Any]) -> None:
    """Under ZeRO-3 no rank holds it whole."""
    reference = Reference(path)
    wanted = reference.outputs(random_micro()).get("logprobs").float()
    for outs, sizes in ranks(frozen, 2, path, options):
        torch.testing.assert_close(outs[0], wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(outs[2], wanted, rtol=1e-5, atol=1e-5)
        for name, parameter in reference.named_parameters().items():
            share = -(-parameter.numel() // 2) if options["zero"] == 3 else parameter.numel()
            assert sizes[name] == share, name


# --- weights for rollouts -----------------------------------------------------------------------


def resharded(rank: RankInfo, path: Path, options: dict[str, Any], target: Layout) -> Any:
    """After a step: what every rank holds by the target's layout, and the weights as exported."""
    strategy = build(rank, path, options)
    source = strategy.layout()
    mover = Mover(Plan(source, target, missing_moves(source, target)), rank.rank, strategy.device)
    for seed in (3, 4):
        strategy.forward_backward([random_micro(seed=seed)], ("logprobs", "entropy"), summed_loss)
        strategy.step(1.0)
        moved = mover.run(strategy.views())
    held = {
        (piece.name, piece.box): local_view(piece, moved[piece.view.key]).clone()
        for piece in target.ranks[rank.rank]
    }
    whole = {name: strategy.full(p).clone() for name, p in strategy.module.named_weights()}
    strategy.close()
    return held, whole


@pytest.mark.parametrize("world", [2, 4])
def test_rollouts_get_whole_or_cut_weights_from_sharded_storage(path: Path, world: int) -> None:
    """The planner and the Mover read the very storage that DeepSpeed updates."""
    params, cuts = cuts_of_model(Reference(path).model)
    params = {n: type(info)(info.shape, "float32") for n, info in params.items()}
    cut = grid_layout(params, cuts, Mesh(dp=world // 2, tp=2))
    for target in (Layout.full(params, world), cut):
        for held, whole in ranks(resharded, world, path, SHARDED, target):
            assert held
            for (name, box), tensor in held.items():
                assert torch.equal(tensor, whole[name][box.slices()]), name


def shared(rank: RankInfo, path: Path, options: dict[str, Any]) -> Any:
    strategy = build(rank, path, options)
    before = {name: view.data_ptr() for name, view in strategy.views().items()}
    strategy.forward_backward([random_micro()], ("logprobs", "entropy"), summed_loss)
    strategy.step(1.0)
    strategy.forward(random_micro(), ("logprobs",))
    after = {name: view.data_ptr() for name, view in strategy.views().items()}
    same = strategy.layout().same_boxes(Layout.full(strategy.params, rank.world))
    strategy.close()
    return before == after, same


@pytest.mark.parametrize("options", STAGES, ids=NAMES)
def test_storage_stays_where_it_is(path: Path, options: dict[str, Any]) -> None:
    """So that a rollout engine beside shares it in stages 0 to 2, and plans stay right in 3."""
    for stays, whole in ranks(shared, 2, path, options):
        assert stays
        assert whole == (options["zero"] < 3)


# --- gradients ----------------------------------------------------------------------------------


def summed(rank: RankInfo, path: Path, options: dict[str, Any], calls: int) -> Any:
    """Norms of three steps: micro-batches in so many calls, nothing at all, one micro-batch."""
    strategy = build(rank, path, options)
    rows = random_micro()[rank.rank :: rank.world]
    micros = [rows[i : i + 1] for i in range(3)] if len(rows) > 2 else [rows, rows[:0], rows[:0]]
    parts = [micros] if calls == 1 else [[micro] for micro in micros]
    norms = []
    for part in parts:
        strategy.forward_backward(part, ("logprobs", "entropy"), summed_loss)
    norms.append(strategy.step(0.0))
    strategy.forward_backward([rows[:0]], ("logprobs", "entropy"), summed_loss)
    norms.append(strategy.step(0.0))
    strategy.forward_backward([rows[:1]], ("logprobs", "entropy"), summed_loss)
    norms.append(strategy.step(0.0))
    strategy.close()
    return norms


@pytest.mark.parametrize("options", [*STAGES, HOST], ids=[*NAMES, "host"])
@pytest.mark.parametrize("calls", [1, 3])
def test_gradients_add_up_over_calls_and_never_stay(
    path: Path, options: dict[str, Any], calls: int
) -> None:
    """A step without rows has norm 0: nothing of the step before is left."""
    first = ranks(summed, 2, path, options, calls)
    reference = Reference(path, "policy", 1.0)
    step = reference.step([random_micro()], summed_loss, 0.05, 0.0)
    for norms in first:
        assert norms[0] == pytest.approx(step.norm, rel=1e-5)
        assert norms[1] == 0.0
        assert norms[2] > 0


def nan_loss(out: Any, micro: Any) -> torch.Tensor:
    return summed_loss(out, micro) * float("nan")


def poisoned(rank: RankInfo, path: Path, options: dict[str, Any], dtype: str) -> Any:
    optim = OptimConfig(lr=0.01)
    strategy = build(rank, path, options, dtype=dtype, optim=optim)
    micro = random_micro()
    before = {name: view.clone() for name, view in strategy.views().items()}
    bad = nan_loss if rank.rank == 0 else summed_loss
    strategy.forward_backward([micro, micro], ("logprobs", "entropy"), bad)
    skipped = strategy.step(1.0)
    same = all(torch.equal(view, before[n]) for n, view in strategy.views().items())
    strategy.forward_backward([micro], ("logprobs", "entropy"), summed_loss)
    norm = strategy.step(1.0)
    counts = set(strategy.optimiser.counts().values())
    moved = any(not torch.equal(view, before[n]) for n, view in strategy.views().items())
    strategy.close()
    return skipped, same, norm, counts, moved


@pytest.mark.parametrize("options", [*STAGES, HOST], ids=[*NAMES, "host"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_that_is_not_finite_changes_nothing(
    path: Path, options: dict[str, Any], dtype: str
) -> None:
    """In bf16 and with an optimiser on the host too; the next step counts as the first."""
    for skipped, same, norm, counts, moved in ranks(poisoned, 2, path, options, dtype):
        assert not abs(skipped) < float("inf")
        assert same
        assert 0 < norm < float("inf")
        assert counts == {1}
        assert moved


# --- refusals -----------------------------------------------------------------------------------


def test_what_it_cannot_do_is_refused(path: Path) -> None:
    made: Strategy = DeepSpeedStrategy(DeepSpeedStrategy.Config(), RankInfo())
    lora = ModelConfig(path=str(path), lora=LoraConfig(rank=4))
    with pytest.raises(ConfigError, match="does not train adapters"):
        made.build(ModelSpec(str(path), lora, optim=OptimConfig()))
    half = ModelConfig(path=str(path), dtype="float16")
    with pytest.raises(ConfigError, match="model.dtype=bfloat16"):
        made.build(ModelSpec(str(path), half, optim=OptimConfig()))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"zero": 4}, "zero"),
        ({"zero": 1, "offload_optimizer": True}, "needs zero=2"),
        ({"zero": 2, "offload_params": True}, "needs zero=3"),
        ({"bucket_elements": 0}, "bucket_elements"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        DeepSpeedStrategy.Config(**options)


def test_a_process_starts_again_after_it_closed(path: Path) -> None:
    """Process groups that DeepSpeed keeps are those of the run that is over."""
    for _ in range(2):
        policy, critic = (
            build(RankInfo(), path, SHARDED, kind=kind) for kind in ("policy", "value")
        )
        policy.forward_backward([random_micro()], ("logprobs", "entropy"), summed_loss)
        assert policy.step(1.0) > 0
        policy.close()
        assert critic.forward(random_micro(), ("values",)).values.shape == (6, 9)
        critic.close()
    assert not torch.distributed.is_initialized()
