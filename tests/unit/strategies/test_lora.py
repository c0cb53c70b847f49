"""Adapters: what is trained and saved, dropout, the base beside, exports, and clear refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

from rlframe.algorithm import Divergence, Output
from rlframe.config import LoraConfig, ModelConfig, OptimConfig
from rlframe.errors import ConfigError, ModelError, SnapshotError
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import random_micro, tiny_model
from rlframe_plugins.rollouts.torch.weights import _joined
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.single import SingleStrategy

LORA = LoraConfig(rank=3, alpha=6.0)
ADAM = OptimConfig(lr=0.02, eps=1e-3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def build(path: Path, lora: LoraConfig = LORA, packing: str = "auto", **changes: Any) -> Any:
    model = ModelConfig(path=str(path), lora=lora, **changes.pop("model", {}))
    spec = replace(ModelSpec(str(path), model, optim=ADAM, optim_steps=10), **changes)
    strategy = SingleStrategy(SingleStrategy.Config(packing=packing), RankInfo())  # type: ignore[arg-type]
    strategy.build(spec)
    return strategy


def loss(out: Output, micro: Any) -> torch.Tensor:
    values = next(v for n in ("logprobs", "values", "scores") if (v := out.get(n)) is not None)
    weights = micro["weights"] if values.ndim == 2 else micro["weights"].sum(1)
    return ((values - 1) * weights + 0.1 * values.square()).sum()


def train(strategy: Any, *seeds: int, computes: tuple[str, ...] = ("logprobs",)) -> None:
    for seed in seeds:
        strategy.forward_backward([random_micro(seed=seed)], computes, loss)
        strategy.step(1.0)


def logprobs(strategy: Any) -> torch.Tensor:
    found: torch.Tensor = strategy.forward(random_micro(), ("logprobs",)).logprobs
    return found


# --- what is trained --------------------------------------------------------------------------


def test_only_adapters_have_gradients_and_optimiser_state(path: Path) -> None:
    strategy = build(path)
    base = {name: view.clone() for name, view in strategy.base_views().items()}
    strategy.forward_backward([random_micro()], ("logprobs",), loss)
    names = set(strategy.adapter_views())
    assert names
    assert set(strategy.gradients()) == names
    assert {n for state in strategy.optimiser.state().values() for n in state} == names
    strategy.step(1.0)
    assert all(torch.equal(view, base[n]) for n, view in strategy.base_views().items())
    assert all("lora" not in name for name in strategy.layout().params)


def test_rows_are_still_packed(path: Path) -> None:
    found = []
    for packing in ("on", "off"):
        strategy = build(path, packing=packing)
        train(strategy, 1)
        found.append((strategy._inputs(random_micro()).segments is not None, logprobs(strategy)))
    assert [packed for packed, _ in found] == [True, False]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-4)


def test_a_role_that_is_not_trained_has_no_adapters(path: Path) -> None:
    strategy = build(path, optim=None)
    assert strategy.adapters() is None
    assert not strategy.adapter_views()


@pytest.mark.parametrize(("kind", "output"), [("value", "values"), ("score", "scores")])
def test_a_number_head_is_trained_whole(path: Path, kind: Any, output: str) -> None:
    strategy = build(path, kind=kind)
    for seed in (1, 2):
        strategy.forward_backward([random_micro(seed=seed)], (output,), loss)
        assert "score.weight" in strategy.gradients()
        strategy.step(1.0)
    assert strategy.views()["score.weight"].abs().max() > 0
    moved = [view for n, view in strategy.adapter_views().items() if "lora_B" in n]
    assert any(view.abs().max() > 0 for view in moved)


def test_merged_weights_lie_side_by_side_in_storage_that_stays(path: Path) -> None:
    strategy = build(path, LoraConfig(rank=2, targets=("k_proj",)))
    views = strategy.views()
    attn = "model.layers.1.self_attn."
    for kind in ("weight", "bias"):
        assert _joined([views[f"{attn}{one}_proj.{kind}"] for one in "qkv"]) is not None
    before = {name: (view.data_ptr(), view.clone()) for name, view in views.items()}
    train(strategy, 1, 2)
    changed = set()
    for name, view in strategy.views().items():
        assert view.data_ptr() == before[name][0]
        changed |= set() if torch.equal(view, before[name][1]) else {name}
    assert changed == {f"model.layers.{i}.self_attn.k_proj.weight" for i in (0, 1)}
    shared = set(views) - {
        f"model.layers.{i}.self_attn.{x}_proj.weight" for i in (0, 1) for x in "qkv"
    }
    base = strategy.base_views()
    assert all(views[name].data_ptr() == base[name].data_ptr() for name in shared)
    assert strategy.extra_bytes == sum(4 * v.numel() for n, v in views.items() if n not in shared)


# --- dropout ----------------------------------------------------------------------------------


def gradients(strategy: Any, *seeds: int) -> dict[str, torch.Tensor]:
    """Of a step whose adapters are no longer zero."""
    train(strategy, 5)
    strategy.forward_backward([random_micro(seed=s) for s in seeds], ("logprobs",), loss)
    return {name: g.clone() for name, g in strategy.gradients().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], near: float = 0.0) -> bool:
    return all(torch.allclose(a[n], b[n], rtol=near, atol=near) for n in a)


def test_dropout_is_drawn_by_seed_and_only_in_training(path: Path) -> None:
    lora = replace(LORA, dropout=0.4)
    first = gradients(build(path, lora), 1, 1)
    torch.manual_seed(99)
    assert same(first, gradients(build(path, lora), 1, 1))
    assert not same(first, gradients(build(path, lora, seed=7), 1, 1))
    assert not same(first, gradients(build(path), 1, 1))
    strategy = build(path, lora)
    state = torch.get_rng_state()
    train(strategy, 1, 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logprobs(strategy), logprobs(strategy))
    one, two = (gradients(build(path, lora), s) for s in (1, 1))
    both = gradients(build(path, lora), 1, 1)
    assert not same(both, {n: one[n] + two[n] for n in one}, 1e-4), "each pass has its own mask"


def test_recomputed_activations_drop_the_same(path: Path) -> None:
    lora = replace(LORA, dropout=0.4)
    plain = gradients(build(path, lora), 1, 2)
    again = gradients(build(path, lora, model={"gradient_checkpointing": True}), 1, 2)
    assert same(plain, again, 1e-5)


# --- the base beside --------------------------------------------------------------------------


def test_the_base_is_the_model_before_training_on_the_same_storage(path: Path) -> None:
    strategy, plain = build(path), build(path, optim=None)
    base = strategy.without_adapters()
    assert torch.equal(logprobs(base), logprobs(plain))
    train(strategy, 1, 2)
    assert not torch.allclose(logprobs(strategy), logprobs(base), atol=1e-3)
    assert torch.equal(logprobs(base), logprobs(plain))
    assert base.module is strategy.module
    for action in (lambda: base.step(1.0), lambda: base.forward_backward([], (), loss)):
        with pytest.raises(ModelError, match="cannot be trained"):
            action()
    with pytest.raises(ConfigError, match="without adapters"):
        plain.without_adapters()


def test_a_divergence_can_be_measured_from_the_base(path: Path) -> None:
    strategy = build(path)
    strategy.attach(strategy.without_adapters(), Divergence("reference"))
    train(strategy, 1, 2)
    out = strategy.forward(random_micro(), ("logprobs", "divergence"))
    assert out.divergence.max() > 1e-3
    fresh = build(path)
    fresh.attach(fresh.without_adapters(), Divergence("reference"))
    assert fresh.forward(random_micro(), ("logprobs", "divergence")).divergence.max() < 1e-6


# --- files ------------------------------------------------------------------------------------


def test_a_snapshot_of_other_adapters_or_another_base_is_refused(
    path: Path, tmp_path: Path
) -> None:
    strategy = build(path)
    train(strategy, 1)
    strategy.save(tmp_path / "adapters")
    saved = json.loads((tmp_path / "adapters" / "rank-00000.json").read_text())["boxes"]
    assert {one["name"] for one in saved} == set(strategy.adapter_views())
    build(path, LoraConfig()).save(tmp_path / "whole")
    for lora, folder, match in (
        (LoraConfig(rank=4, alpha=6.0), "adapters", "rank 3, the run of 4"),
        (LoraConfig(rank=3), "adapters", r"alpha 6\.0, the run of 16\.0"),
        (replace(LORA, targets=("q_proj",)), "adapters", "targets"),
        (LoraConfig(), "adapters", r"adapters of rank 3: set model\.lora\.rank=3"),
        (LORA, "whole", r"the whole model: set model\.lora\.rank=0"),
    ):
        with pytest.raises(SnapshotError, match=match):
            build(path, lora).load(tmp_path / folder)
    other = tiny_model(tmp_path / "other", seed=5)
    with pytest.raises(SnapshotError, match="another model"):
        build(other).load(tmp_path / "adapters")
    with pytest.raises(SnapshotError, match="another model"):
        build(other, optim=None).load(tmp_path / "adapters")


@pytest.mark.parametrize(("kind", "output"), [("policy", "logprobs"), ("value", "values")])
def test_a_model_that_is_not_trained_takes_adapters_merged(
    path: Path, tmp_path: Path, kind: Any, output: str
) -> None:
    strategy = build(path, kind=kind)
    train(strategy, 1, 2, computes=(output,))
    strategy.save(tmp_path)
    plain = build(path, LoraConfig(), kind=kind, optim=None)
    plain.load(tmp_path)
    for name, view in strategy.views().items():
        assert torch.equal(plain.views()[name], view), name
    got, wanted = (one.forward(random_micro(), (output,)).get(output) for one in (plain, strategy))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def sharded(rank: RankInfo, path: Path, folder: Path) -> dict[str, torch.Tensor]:
    strategy = FSDPStrategy(FSDPStrategy.Config(), rank)
    strategy.build(ModelSpec(str(path), ModelConfig(path=str(path))))
    strategy.load(folder)
    whole = dict(strategy.whole_weights())
    strategy.close()
    return whole


@pytest.mark.dist
def test_shards_take_adapters_merged(path: Path, tmp_path: Path) -> None:
    strategy = build(path)
    train(strategy, 1, 2)
    strategy.save(tmp_path)
    for whole in run_ranks(sharded, 2, path, tmp_path):
        for name, view in strategy.views().items():
            torch.testing.assert_close(whole[name], view, rtol=1e-6, atol=1e-7)


def test_adapters_alone_load_with_peft(path: Path, tmp_path: Path) -> None:
    strategy = build(path, LoraConfig(rank=3, targets=("q_proj", "down_proj")))
    train(strategy, 1, 2)
    strategy.export(tmp_path / "merged")
    strategy.export_adapters(tmp_path / "adapter")
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    base = AutoModelForCausalLM.from_pretrained(path)
    alone = PeftModel.from_pretrained(base, tmp_path / "adapter")(ids).logits
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits
    torch.testing.assert_close(alone, merged, rtol=1e-4, atol=1e-4)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(path)
    with pytest.raises(ConfigError, match="no adapters to write"):
        build(path, LoraConfig()).export_adapters(tmp_path / "none")


def test_adapters_of_a_score_model_load_with_peft(path: Path, tmp_path: Path) -> None:
    strategy = build(path, kind="score")
    train(strategy, 1, 2, computes=("scores",))
    strategy.export(tmp_path / "merged")
    strategy.export_adapters(tmp_path / "adapter")
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    base = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
    alone = PeftModel.from_pretrained(base, tmp_path / "adapter")(ids).logits
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")(ids).logits
    torch.testing.assert_close(alone, merged, rtol=1e-4, atol=1e-4)


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "match"),
    [
        (("q_prj",), r"model\.lora\.targets: unknown layer 'q_prj'. Did you mean 'q_proj'"),
        (("norm",), "unknown layer 'norm'"),
        (("q_proj", "lm_head"), "'lm_head' is the head"),
    ],
)
def test_wrong_targets_are_named(path: Path, targets: tuple[str, ...], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build(path, LoraConfig(rank=2, targets=targets))


def test_models_that_cannot_have_adapters_are_refused(tmp_path: Path) -> None:
    small = {"vocab_size": 37, "n_positions": 32, "n_embd": 8, "n_layer": 1, "n_head": 2}
    GPT2LMHeadModel(GPT2Config(**small)).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ConfigError, match="no linear layers"):
        build(tmp_path / "gpt2")
    bert = BertConfig(
        vocab_size=37,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
    )
    BertForSequenceClassification(bert).save_pretrained(tmp_path / "bert")
    with pytest.raises(ConfigError, match="head of its own kind"):
        build(tmp_path / "bert", kind="score")


def cut(rank: RankInfo, path: Path) -> str:
    strategy = FSDPStrategy(FSDPStrategy.Config(tp=2), rank)
    model = ModelConfig(path=str(path), lora=LORA)
    with pytest.raises(ConfigError) as refused:
        strategy.build(ModelSpec(str(path), model, optim=ADAM, optim_steps=10))
    strategy.close()
    return str(refused.value)


@pytest.mark.dist
def test_layers_that_tensor_ranks_cut_get_no_adapter(path: Path) -> None:
    assert all("strategy.tp=1 (now 2)" in text for text in run_ranks(cut, 2, path))
