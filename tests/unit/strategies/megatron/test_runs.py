"""Strategy megatron beside Hugging Face, other strategies and other sizes of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-megatron")

from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlframe.calling.protocol import Mesh
from rlframe.config import LoraConfig, ModelConfig, OptimConfig
from rlframe.errors import ConfigError, ModelError
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import random_micro
from rlframe.testing.strategy_runs import (
    SEEDS,
    TEMPERATURE,
    Job,
    run_job,
    summed_loss,
    whole_weights,
)
from rlframe.weights.layout import Layout
from rlframe.weights.model_cuts import cuts_of_model
from rlframe.weights.moving import Mover
from rlframe.weights.sharding import grid_layout
from rlframe.weights.storage import local_view
from rlframe_plugins.resharders.zero_redundancy import ZeroRedundancy
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.megatron import shim
from rlframe_strategies.megatron.strategy import MegatronStrategy
from rlframe_strategies.single import SingleStrategy
from tests.unit.strategies.megatron.models import KINDS, write_model

pytestmark = pytest.mark.dist

shim.install()  # once, before ranks are forked

ADAMW = OptimConfig(lr=0.01, eps=1e-3, schedule="cosine", weight_decay=0.1)
GRID = {"tp": 2, "pp": 2}


def built(rank: RankInfo, folder: Any, options: dict[str, Any], **spec: Any) -> MegatronStrategy:
    strategy = MegatronStrategy(MegatronStrategy.Config(**options), rank)
    model = ModelConfig(path=str(folder), **spec.pop("model", {}))
    spec.setdefault("optim", OptimConfig(name="sgd", lr=0.05))
    strategy.build(ModelSpec(str(folder), model, optim_steps=10, **spec))
    return strategy


# --- as Hugging Face ----------------------------------------------------------------------------


def own_logits(rank: RankInfo, folder: Any, options: dict[str, Any], ids: Any) -> Any:
    strategy = built(rank, folder, options, optim=None)
    (chunk,) = strategy.model.chunks
    width = ids.shape[1]
    mask = torch.ones(width, width).triu(1).bool()[None, None]
    positions = torch.arange(width).expand_as(ids)
    return chunk.eval()(ids, positions, mask).detach()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sequence", [False, True])
def test_logits_equal_those_of_transformers(tmp_path, kind, sequence):
    """Megatron's own logits, over two tensor-parallel ranks, without the vocabulary's padding."""
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e3} if sequence else None
    more = {"rope_parameters": rope} if rope else {}
    folder = write_model(tmp_path, kind, **more)
    ids = torch.randint(0, 37, (3, 16), generator=torch.Generator().manual_seed(3))
    options = {"tp": 2, "sequence_parallel": sequence}
    parts = run_ranks(own_logits, 2, folder, options, ids)
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    got = torch.cat(parts, -1)
    assert got.shape[-1] == 38
    torch.testing.assert_close(got[..., :37], expected, rtol=1e-5, atol=1e-5)


# --- files under other sizes ----------------------------------------------------------------------


def test_a_snapshot_continues_under_other_sizes_and_strategies(tmp_path):
    """Saved after a step of AdamW on 4 ranks; the next step is the same wherever it is taken."""
    folder = write_model(tmp_path / "m", "qwen2")
    job = Job(SingleStrategy, folder, {}, optim=ADAMW)
    unbroken = whole_weights(run_ranks(run_job, 1, replace(job, seeds=SEEDS)))
    saved = tmp_path / "saved"
    mine = replace(job, target=MegatronStrategy, options=GRID)
    run_ranks(run_job, 4, replace(mine, save=saved))
    back = replace(job, load=saved, seeds=SEEDS[1:])
    for target, world, options in [
        (SingleStrategy, 1, {}),
        (FSDPStrategy, 2, {}),
        (MegatronStrategy, 2, {}),
        (MegatronStrategy, 4, {"tp": 2}),
        (MegatronStrategy, 4, {"pp": 4, "distributed_optimizer": False}),
    ]:
        seen = run_ranks(run_job, world, replace(back, target=target, options=options))
        compare(whole_weights(seen), unbroken, f"{target.__name__} {options} on {world}")


def test_a_snapshot_of_one_process_continues_on_a_grid(tmp_path):
    folder = write_model(tmp_path / "m", "llama")
    job = Job(SingleStrategy, folder, {}, optim=ADAMW)
    unbroken = whole_weights(run_ranks(run_job, 1, replace(job, seeds=SEEDS)))
    saved = tmp_path / "saved"
    run_ranks(run_job, 1, replace(job, save=saved))
    mine = replace(job, target=MegatronStrategy, options=GRID, load=saved, seeds=SEEDS[1:])
    compare(whole_weights(run_ranks(run_job, 8, mine)), unbroken, "8 ranks")


def compare(got: Any, expected: Any, what: str) -> None:
    assert set(got) == set(expected)
    for name, tensor in got.items():
        close = torch.allclose(tensor, expected[name], rtol=1e-5, atol=2e-6)
        assert close, (what, name, (tensor - expected[name]).abs().max())


# --- to generation --------------------------------------------------------------------------------


def moved(rank: RankInfo, folder: Any, whole: bool) -> Any:
    strategy = built(rank, folder, GRID)
    source = strategy.layout()
    if whole:
        target = Layout.full(source.params, 4)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
        generation = Mesh(pp=2, tp=2, pg=1, tg=2)
        target = grid_layout(*cuts_of_model(model), generation, "strided")
    plan = ZeroRedundancy(ZeroRedundancy.Config()).plan(source, target)
    mover = Mover(plan, rank.rank, torch.device("cpu"))
    held = mover.run(strategy.views())
    pieces = target.ranks[rank.rank]
    return [(p.name, p.box, local_view(p, held[p.view.key]).clone()) for p in pieces]


@pytest.mark.parametrize("whole", [True, False])
def test_weights_reach_generation_bit_by_bit(tmp_path, whole):
    """From 2-2-1 (p-t-d) to whole weights on every rank, and to 1-2-2-1 (pg-tg-dg-d)."""
    folder = write_model(tmp_path, "qwen2")
    expected = load_file(folder / "model.safetensors")
    for rank in run_ranks(moved, 4, folder, whole):
        names = {name for name, _, _ in rank}
        assert names == set(expected)
        for name, box, part in rank:
            assert torch.equal(part, expected[name][box.slices()]), name


# --- steps ----------------------------------------------------------------------------------------


def looked_into(rank: RankInfo, folder: Any) -> dict[str, Any]:
    """Optimiser state, the vocabulary's padding, steps without a gradient or without rows."""
    strategy = built(rank, folder, {"tp": 2}, optim=ADAMW)
    assert strategy.optimiser is not None
    micro = random_micro(seed=rank.rank // 2)
    strategy.forward_backward([micro], ("logprobs", "entropy"), summed_loss)
    first = strategy.step(1.0)
    state = sum(t.numel() for t in strategy.optimiser.state()["exp_avg"].values())
    padding = strategy.views()["model.embed_tokens.weight"][-1].clone()
    strategy.forward_backward([micro[:0]], ("logprobs",), summed_loss)
    nothing = lambda out, micro: torch.zeros(())  # noqa: E731
    strategy.forward_backward([micro], ("logprobs",), nothing)
    second = strategy.shards.sum_squares(strategy.shards.gradients()) if strategy.shards else 1.0
    local = sum(p.numel() for p in strategy.model.parameters.values())
    strategy.close()
    return {
        "norm": first,
        "state": state,
        "local": local,
        "padding": padding,
        "gradient": float(second),
    }


def test_replicas_share_the_state_and_what_is_nothing_adds_nothing(tmp_path):
    folder = write_model(tmp_path, "qwen2")
    seen = run_ranks(looked_into, 4, folder)
    for tensor in range(2):
        pair = [seen[tensor], seen[2 + tensor]]
        assert sum(one["state"] for one in pair) == pair[0]["local"]
        assert max(one["state"] for one in pair) < 0.7 * pair[0]["local"]
        assert bool((pair[0]["padding"] == 0).all()) == (tensor == 1)
    assert len({one["norm"] for one in seen}) == 1
    assert all(one["gradient"] == 0 for one in seen)


def low_precision(rank: RankInfo, folder: Any, saved: Any) -> Any:
    spec = {"optim": ADAMW, "model": {"dtype": "bfloat16"}, "temperature": TEMPERATURE}
    strategy = built(rank, folder, GRID, **spec)
    assert strategy.optimiser is not None
    micro = random_micro(seed=1)
    strategy.forward_backward([micro], ("logprobs", "entropy"), summed_loss)
    norm = strategy.step(0.0)
    strategy.save(saved)
    strategy.parallel.of_all("saved")  # nobody reads before all have written
    masters = {key: master.clone() for key, master in strategy.optimiser.masters.items()}
    for master in strategy.optimiser.masters.values():
        master.zero_()
    strategy.load(saved)
    back = strategy.optimiser.masters
    assert masters
    assert all(torch.equal(masters[key], back[key]) for key in masters)
    assert all(view.dtype == torch.bfloat16 for view in strategy.views().values())
    return norm


def test_low_precision_trains_on_float32_copies(tmp_path):
    folder = write_model(tmp_path / "m", "qwen2")
    norms = run_ranks(low_precision, 4, folder, tmp_path / "saved")
    exact = run_ranks(run_job, 1, Job(SingleStrategy, folder, {}, seeds=(1,), clip=0.0))
    assert norms == pytest.approx([exact[0].norms[0]] * 4, rel=0.05)


# --- several roles, and what is refused -----------------------------------------------------------


def two_roles(rank: RankInfo, folder: Any) -> Any:
    policy = built(rank, folder, {"pp": 2})
    reference = built(rank, folder, {"pp": 2}, optim=None)
    micro = random_micro()
    outs = [one.forward(micro, ("logprobs",)).logprobs for one in (policy, reference)]
    assert torch.equal(*outs)
    with pytest.raises(ModelError, match="without an optimiser"):
        reference.step(1.0)
    refused = []
    for options, spec in [
        ({"tp": 2}, {}),
        ({"pp": 2}, {"model": {"lora": LoraConfig(rank=2)}}),
        ({"pp": 2}, {"kind": "score", "optim": None}),
    ]:
        with pytest.raises((ConfigError, ModelError)) as found:
            built(rank, folder, options, **spec)
        refused.append(str(found.value))
    with pytest.raises(ConfigError) as found:
        policy.forward(micro, ("divergence",))
    refused.append(str(found.value))
    policy.close()
    assert torch.equal(reference.forward(micro, ("logprobs",)).logprobs, outs[0])
    reference.close()
    return refused


def test_roles_share_one_set_of_groups_and_refusals_say_what_to_do(tmp_path):
    folder = write_model(tmp_path, "llama")
    for sizes, lora, score, divergence in run_ranks(two_roles, 2, folder):
        assert "one set a process" in sizes
        assert "strategy.pp" in sizes
        assert "--strategy fsdp" in lora
        assert "no score head" in score
        assert "divergence" in divergence


def test_torch_itself_is_left_as_it_was():
    """The stand-in for CUDA is Megatron's alone."""
    import megatron.core.tensor_parallel.layers as layers

    assert layers.torch.cuda.current_device() == "cpu"
    assert torch.cuda.current_device.__module__ == "torch.cuda"
    assert layers.torch.zeros(2, device="cuda").device.type == "cpu"
    assert torch.zeros.__module__ != "rlframe_strategies.megatron.shim"
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")
