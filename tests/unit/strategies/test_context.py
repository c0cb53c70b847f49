"""Context parallelism: ranks share the tokens of the same rows, and every number stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from rlframe.config import ModelConfig
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.dist import RankError, join, run_ranks
from rlframe.testing.models import random_micro
from rlframe.testing.strategy_runs import SEEDS
from rlframe_strategies.context import share_inputs
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.packing import make_inputs
from rlframe_strategies.peers import Peers
from tests.unit.strategies.fsdp_runs import check_steps, run
from tests.unit.strategies.models import cut_model

pytestmark = [pytest.mark.dist, pytest.mark.timeout(180)]

SHAPES = [
    pytest.param(4, {"cp": 4}, "llama", {"micro_rows": 6}, id="repeated-kv-one-micro"),
    pytest.param(4, {"cp": 2}, "qwen2", {"micro_rows": 1}, id="fsdp-cp-single-rows"),
    pytest.param(4, {"cp": 2, "packing": "off"}, "qwen2", {"uneven": True}, id="padded-no-rows"),
    pytest.param(8, {"cp": 2, "tp": 2, "replicas": 2}, "qwen3", {}, id="hsdp-tp-cp"),
]


@pytest.mark.parametrize(("world", "options", "model", "changes"), SHAPES)
def test_two_steps_equal_the_reference(
    tmp_path: Path, world: int, options: dict[str, Any], model: str, changes: dict[str, Any]
) -> None:
    path = cut_model(tmp_path / "model", model)
    check_steps(run(world, path, options, seeds=SEEDS, **changes), path, "policy")


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("packed", [True, False])
def test_shares_are_equal_and_each_output_is_one_ranks(size: int, packed: bool) -> None:
    inputs = make_inputs(random_micro(), packed=packed, masked=False, whole=False)
    shares = [share_inputs(inputs, Peers(None, size, rank)) for rank in range(size)]
    assert len({share.inputs.input_ids.shape for share in shares}) == 1
    tokens = torch.cat([share.tokens for share in shares])
    assert sorted(tokens.tolist()) == list(range(len(inputs.take)))
    labels = torch.cat([share.inputs.labels for share in shares])
    assert torch.equal(labels[tokens.argsort()], inputs.labels)
    ids = torch.cat([share.inputs.input_ids[0] for share in shares])
    whole = inputs.input_ids.flatten()
    assert torch.equal(ids[: len(whole)], whole)
    assert not ids[len(whole) :].any()
    for share in shares:
        got = share.inputs.input_ids[0][share.inputs.take]
        assert torch.equal(got, whole[inputs.take[share.tokens]])


def swap(rank: RankInfo) -> list[tuple[int, ...]]:
    from rlframe_strategies.context import _swap

    join(rank)
    peers = Peers(dist.group.WORLD, rank.world, rank.rank)
    h, t, d = 4, 3, 2
    whole = torch.arange(float(h * t * rank.world * d)).view(h, -1, d)
    mine = whole[:, rank.rank * t : (rank.rank + 1) * t].clone().requires_grad_()
    heads = _swap(mine, peers, to_heads=True)
    part = h // rank.world
    assert torch.equal(heads, whole[rank.rank * part : (rank.rank + 1) * part])
    back = _swap(heads, peers, to_heads=False)
    assert torch.equal(back, mine)
    (heads * heads.detach()).sum().backward()
    assert mine.grad is not None
    assert torch.equal(mine.grad, mine.detach())
    dist.barrier()
    return [tuple(heads.shape)]


def test_tokens_are_swapped_for_heads_and_back() -> None:
    assert run_ranks(swap, 4) == [[(1, 12, 2)]] * 4


@pytest.mark.parametrize(
    ("kind", "options", "world", "message"),
    [
        ("qwen2", {"cp": 3}, 3, "strategy.cp=3 does not divide the 4 attention heads"),
        ("qwen2", {"cp": 4, "tp": 2}, 8, "strategy.cp=4 does not divide the 2 attention heads"),
        ("gpt2", {"cp": 2}, 2, "cannot attend for GPT2LMHeadModel with model.attn=eager"),
    ],
)
def test_what_cannot_share_tokens_is_refused(
    tmp_path: Path, kind: str, options: dict[str, Any], world: int, message: str
) -> None:
    attn = "eager" if kind == "gpt2" else "auto"
    path = tiny_gpt2(tmp_path / "m") if kind == "gpt2" else cut_model(tmp_path / "m", kind)

    def build(rank: RankInfo) -> None:
        strategy = FSDPStrategy(FSDPStrategy.Config(**options), rank)
        strategy.build(ModelSpec(str(path), ModelConfig(path=str(path), attn=attn)))

    with pytest.raises(RankError, match=message):
        run_ranks(build, world)


def tiny_gpt2(folder: Path) -> Path:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=37, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("window", [12, 16])
def test_rows_beyond_a_sliding_window_are_refused(tmp_path: Path, window: int) -> None:
    """The longest row has 15 tokens that are fed."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=37,
        hidden_size=16,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=window,
        max_position_embeddings=64,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    if window == 12:
        with pytest.raises(RankError, match="no sliding window: a row has 15 tokens"):
            run(2, tmp_path, {"cp": 2}, seeds=SEEDS)
        return
    check_steps(run(2, tmp_path, {"cp": 2}, seeds=SEEDS), tmp_path, "policy")
