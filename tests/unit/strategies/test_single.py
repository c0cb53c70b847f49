from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from rlframe.algorithm import Output
from rlframe.config import ModelConfig, OptimConfig
from rlframe.errors import ConfigError, ModelError
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.models import random_micro, tiny_model
from rlframe.testing.strategy_reference import Reference
from rlframe_strategies.single import SingleStrategy

SGD = OptimConfig(name="sgd", lr=0.05)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def build(path: Path, packing: str = "auto", **changes: Any) -> SingleStrategy:
    model = ModelConfig(path=str(path), **changes.pop("model", {}))
    spec = replace(ModelSpec(str(path), model, optim=SGD, optim_steps=10), **changes)
    strategy = SingleStrategy(SingleStrategy.Config(packing=packing), RankInfo())  # type: ignore[arg-type]
    strategy.build(spec)
    return strategy


def loss(out: Output, micro: Any) -> torch.Tensor:
    total: torch.Tensor = (out.logprobs * micro["weights"]).sum()
    return total


def train(strategy: SingleStrategy, seeds: list[int]) -> None:
    for seed in seeds:
        strategy.forward_backward([random_micro(seed=seed)], ("logprobs",), loss)
        strategy.step(1.0)


@pytest.mark.parametrize("equal", [False, True])
def test_a_shared_prompt_gets_the_gradient_of_all_its_rows(path: Path, equal: bool) -> None:
    micro = random_micro(rows=7, seed=3)
    for name in ("prompt_ids", "prompt_lengths"):
        micro[name] = micro[name][torch.tensor([0, 2, 0, 2, 2, 0, 3])]
    if equal:
        micro["response_lengths"].fill_(5)
    found = []
    for packing in ("off", "on"):
        strategy = build(path, packing)
        fed = strategy._inputs(micro).input_ids.numel()
        strategy.forward_backward([micro], ("logprobs",), loss)
        found.append((fed, strategy.forward(micro, ("logprobs",)), strategy.gradients()))
    (padded, before, expected), (shared, after, got) = found
    assert shared < padded
    torch.testing.assert_close(after.logprobs, before.logprobs, rtol=1e-5, atol=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_attention_that_ignores_a_score_cap_is_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model("gemma2", vocab_size=37, hidden_size=16, num_hidden_layers=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.attn=eager"):
        build(tmp_path, model={"attn": "sdpa"})


def test_packing_where_it_cannot_be_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="packing=auto"):
        build(path, packing="on", model={"attn": "eager"})


def test_eager_attention_is_used_when_asked_for(path: Path) -> None:
    strategy = build(path, model={"attn": "eager"})
    strategy.forward(random_micro(), ("logprobs",))
    assert strategy.module.lm.config._attn_implementation == "eager"


def test_two_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="--strategy ddp or fsdp"):
        SingleStrategy(SingleStrategy.Config(), RankInfo(rank=0, world=2))


def test_a_model_without_optimiser_computes_but_does_not_train(path: Path) -> None:
    strategy = build(path, optim=None)
    assert strategy.forward(random_micro(), ("logprobs",)).logprobs.any()
    assert not any(p.requires_grad for p in strategy.parameters().values())
    with pytest.raises(ModelError, match="optimiser"):
        strategy.forward_backward([random_micro()], ("logprobs",), loss)
    with pytest.raises(ModelError, match="optimiser"):
        strategy.step(1.0)


@pytest.mark.parametrize(
    ("kind", "wrong"), [("policy", "values"), ("value", "logprobs"), ("score", "values")]
)
def test_an_output_that_the_kind_lacks_is_named(path: Path, kind: Any, wrong: str) -> None:
    with pytest.raises(ModelError, match=f"not {wrong}"):
        build(path, kind=kind).forward(random_micro(), (wrong,))


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [("policy", "entropy", (0, 9)), ("value", "values", (0, 9)), ("score", "scores", (0,))],
)
def test_an_empty_micro_batch_gives_empty_outputs(
    path: Path, kind: Any, name: str, shape: tuple[int, ...]
) -> None:
    out = build(path, kind=kind).forward(random_micro()[:0], (name,)).get(name)
    assert out is not None
    assert out.shape == shape


def test_entropy_is_not_computed_unasked(path: Path) -> None:
    out = build(path).forward(random_micro(), ("logprobs",))
    assert out.get("entropy") is None


def test_related_weights_lie_side_by_side_and_stay_so(path: Path) -> None:
    strategy = build(path)
    train(strategy, [1])
    views = strategy.views()
    for group in (("self_attn.q_proj", "k", "v"), ("mlp.gate_proj", "up")):
        first = group[0]
        names = [first, *(first.rpartition(".")[0] + f".{other}_proj" for other in group[1:])]
        parts = [views[f"model.layers.1.{name}.weight"] for name in names]
        whole = parts[0].as_strided(
            (sum(len(p) for p in parts), parts[0].shape[1]), parts[0].stride()
        )
        assert torch.equal(whole, torch.cat(parts))


def test_views_are_the_module_s_storage(path: Path) -> None:
    strategy = build(path)
    before = strategy.forward(random_micro(), ("logprobs",)).logprobs
    with torch.no_grad():
        strategy.views()["model.norm.weight"].mul_(2)
    after = strategy.forward(random_micro(), ("logprobs",)).logprobs
    assert not torch.equal(before, after)
    assert "lm_head.weight" not in strategy.views()


@pytest.mark.parametrize("optim", [SGD, OptimConfig(lr=0.01, schedule="cosine", warmup_steps=2)])
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(
    path: Path, tmp_path: Path, optim: OptimConfig
) -> None:
    unbroken, broken, resumed = (build(path, optim=optim) for _ in range(3))
    train(unbroken, [1, 2, 3])
    train(broken, [1])
    broken.save(tmp_path)
    expected = torch.rand(3)
    resumed.load(tmp_path)
    assert torch.equal(torch.rand(3), expected)
    assert resumed.learning_rate() == broken.learning_rate()
    train(resumed, [2, 3])
    for name, weight in unbroken.views().items():
        assert torch.equal(weight, resumed.views()[name])


def test_low_precision_weights_resume_with_their_masters(path: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": {"dtype": "bfloat16"}, "optim": OptimConfig(lr=1e-4)}
    unbroken, resumed = build(path, **options), build(path, **options)
    train(unbroken, [1])
    unbroken.save(tmp_path)
    train(unbroken, [2])
    resumed.load(tmp_path)
    train(resumed, [2])
    assert unbroken.optimiser is not None
    assert resumed.optimiser is not None
    for name, master in unbroken.optimiser.masters.items():
        assert master.dtype == torch.float32
        assert torch.equal(master, resumed.optimiser.masters[name])


def test_a_snapshot_of_another_kind_or_optimiser_is_refused(path: Path, tmp_path: Path) -> None:
    build(path).save(tmp_path)
    with pytest.raises(Exception, match="policy model"):
        build(path, kind="value").load(tmp_path)
    with pytest.raises(Exception, match="optimiser sgd"):
        build(path, optim=OptimConfig(lr=0.1)).load(tmp_path)


def test_a_reference_loads_a_trained_policy_s_snapshot(path: Path, tmp_path: Path) -> None:
    trained, reference = build(path), build(path, optim=None)
    train(trained, [1])
    trained.save(tmp_path)
    reference.load(tmp_path)
    got, expected = (s.forward(random_micro(), ("logprobs",)) for s in (reference, trained))
    assert torch.equal(got.logprobs, expected.logprobs)


def test_export_keeps_type_tokenizer_and_generation_config(path: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    model.generation_config.temperature, model.generation_config.do_sample = 0.3, True
    model.save_pretrained(source)
    (source / "tokenizer.json").write_bytes(b"{ exactly these bytes }")
    (source / "tokenizer_config.json").write_text("{}")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    strategy = build(source)
    train(strategy, [1])
    strategy.export(tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert loaded.dtype == torch.bfloat16
    assert loaded.generation_config.temperature == 0.3
    for name, weight in strategy.views().items():
        assert torch.equal(loaded.get_parameter(name), weight.bfloat16())


@pytest.mark.parametrize(
    ("kind", "auto", "name"),
    [
        ("value", AutoModelForTokenClassification, "values"),
        ("score", AutoModelForSequenceClassification, "scores"),
    ],
)
def test_number_heads_survive_export(
    path: Path, tmp_path: Path, kind: Any, auto: Any, name: str
) -> None:
    strategy = build(path, kind=kind)
    strategy.forward_backward(
        [random_micro()], (name,), lambda o, m: (o.get(name) - 1).square().sum()
    )
    strategy.step(1.0)
    strategy.export(tmp_path)
    expected = strategy.forward(random_micro(), (name,)).get(name)
    got = build(tmp_path, kind=kind).forward(random_micro(), (name,)).get(name)
    assert expected is not None
    assert got is not None
    assert expected.any()
    assert torch.equal(got, expected)
    loaded = auto.from_pretrained(tmp_path)
    assert loaded.num_labels == 1
    assert torch.equal(loaded.score.weight, strategy.views()["score.weight"])


def test_dropout_is_off_also_with_gradient_checkpointing(path: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(path)
    model.config.attention_dropout = 0.5
    model.save_pretrained(tmp_path)
    strategy = build(tmp_path, model={"gradient_checkpointing": True})
    kept = []
    strategy.forward_backward(
        [random_micro(), random_micro()],
        ("logprobs",),
        lambda out, micro: kept.append(out.logprobs.detach()) or out.logprobs.sum(),  # type: ignore[func-returns-value]
    )
    assert torch.equal(kept[0], kept[1])
    strategy.export(tmp_path / "out")
    assert AutoConfig.from_pretrained(tmp_path / "out").attention_dropout == 0.5


def test_a_loss_without_gradient_adds_nothing(path: Path) -> None:
    strategy = build(path)
    strategy.forward_backward([random_micro()], ("logprobs",), lambda out, micro: torch.zeros(()))
    assert strategy.step(1.0) == 0


def test_outputs_of_a_training_pass_are_those_of_a_pass_without_gradient(path: Path) -> None:
    strategy = build(path)
    seen = []

    def watch(out: Output, micro: Any) -> torch.Tensor:
        seen.append(out.logprobs.detach())
        return loss(out, micro)

    strategy.forward_backward([random_micro()], ("logprobs",), watch)
    assert torch.equal(seen[0], strategy.forward(random_micro(), ("logprobs",)).logprobs)


def test_reference_of_the_kit_agrees_with_llama_too(tmp_path: Path) -> None:
    path = tiny_model(tmp_path, "llama")
    strategy = build(path)
    train(strategy, [1])
    step = Reference(path).step([random_micro(seed=1)], loss, 0.05, 1.0)
    for name, weight in strategy.views().items():
        torch.testing.assert_close(weight.double(), step.weights[name], rtol=1e-5, atol=1e-5)
