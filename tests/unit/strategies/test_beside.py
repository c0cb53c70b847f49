"""A divergence from a teacher beside the policy: any split, packing and strategy, same update."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from rlframe.batching.batch import Batch
from rlframe.batching.plan import plan_batch
from rlframe.config import ModelConfig, OptimConfig, Selected
from rlframe.errors import ConfigError, ModelError
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.models import VOCABULARY, tiny_model
from rlframe_algorithms.distill import Distill
from rlframe_strategies.engine import CausalLMEngine
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.single import SingleStrategy

STRATEGIES = {"single": SingleStrategy, "fsdp": FSDPStrategy}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    student = tiny_model(tmp_path_factory.mktemp("student"), seed=1)
    teacher = tiny_model(tmp_path_factory.mktemp("teacher"), "llama", seed=2, hidden_size=24)
    other = tiny_model(tmp_path_factory.mktemp("other"), seed=3, vocab_size=VOCABULARY + 1)
    return str(student), str(teacher), str(other)


def engine(path, algorithm, role, strategy="single", packing="auto"):
    optim = OptimConfig(name="sgd", lr=0.5)
    made, cls = CausalLMEngine(RankInfo()), STRATEGIES[strategy]
    model = ModelSpec(path, ModelConfig(path=path), role.model, optim if role.trained else None, 9)
    made.setup(
        EngineSpec(
            role=role,
            model=dataclasses.replace(model, temperature=0.8),
            strategy=Selected(strategy, "", cls.Config(packing=packing), value=cls),
            algorithm=Selected("a", "", algorithm.config, value=Distill),
            tokens_per_microbatch=100,
        )
    )
    return made


def batch_for(algorithm):
    rng = np.random.default_rng(0)
    lengths = [5, 0, 3, 8, 1, 4]
    columns = {
        "prompt_ids": [rng.integers(1, VOCABULARY, n) for n in (3, 1, 4, 1, 5, 2)],
        "response_ids": [rng.integers(1, VOCABULARY, n) for n in lengths],
        "response_mask": [rng.random(n) < 0.8 for n in lengths],
        "group_ids": np.arange(6, dtype=np.int64),
        "train": np.ones(6, bool),
    }
    return Batch.from_columns(columns, schema=algorithm.schema())


def update(folders, budget=100, strategy="single", packing="auto", **options):
    algorithm = Distill(**options)
    policy, teacher = (
        engine(path, algorithm, role, strategy, packing)
        for path, role in zip(folders, algorithm.roles(), strict=False)
    )
    policy.peers = {"policy": policy, "teacher": teacher}
    batch = batch_for(algorithm)
    result = policy.update(batch, plan_batch(batch, epochs=2, budget=budget))
    weights = {n: v.detach().clone() for n, v in policy._strategy.views().items()}
    policy.close()
    teacher.close()
    return result.metrics, weights


OPTIONS = [{}, {"divergence": "jsd", "top_k": 5}, {"divergence": "forward-kl", "top_k": 2}]


@pytest.mark.parametrize("options", OPTIONS, ids=["reverse", "jsd", "forward"])
@pytest.mark.parametrize(
    "how",
    [{"budget": 1}, {"budget": 12, "packing": "off"}, {"packing": "on"}, {"strategy": "fsdp"}],
)
def test_every_split_and_strategy_gives_the_same_update(folders, options, how):
    metrics, weights = update(folders, packing="off", **options)
    assert metrics["pg_loss"] > 0
    assert metrics["grad_norm"] > 0
    others, moved = update(folders, **{**how, **options})
    for name in ("pg_loss", "grad_norm", "entropy"):
        assert others[name] == pytest.approx(metrics[name], rel=1e-4), name
    for name, value in weights.items():
        torch.testing.assert_close(moved[name], value, rtol=1e-4, atol=2e-5)


def test_the_divergence_is_that_of_the_models_own_logits(folders):
    from transformers import AutoModelForCausalLM

    algorithm = Distill()
    batch = batch_for(algorithm)
    models = [AutoModelForCausalLM.from_pretrained(path).double() for path in folders[:2]]
    values = []
    prompts, responses = batch.packed("prompt_ids").rows(), batch.packed("response_ids").rows()
    for prompt, response, mask in zip(
        prompts, responses, batch.packed("response_mask").rows(), strict=True
    ):
        ids = torch.tensor(np.concatenate([prompt, response]))[None]
        with torch.no_grad():
            p, q = ((m(ids).logits[0] / 0.8).log_softmax(-1) for m in models)
        kl = (p.exp() * (p - q)).sum(-1)[len(prompt) - 1 : -1]
        values += kl[torch.tensor(mask)].tolist() if len(response) else []
    policy, teacher = (
        engine(path, algorithm, role)
        for path, role in zip(folders, algorithm.roles(), strict=False)
    )
    policy.peers = {"teacher": teacher}
    figures = policy.evaluate(batch, plan_batch(batch, budget=100))
    assert figures["pg_loss"] == pytest.approx(float(np.mean(values)), rel=1e-4)


def test_another_vocabulary_and_another_place_are_refused(folders):
    student, _, other = folders
    with pytest.raises(ModelError, match="37 and 38 tokens: role 'teacher'"):
        update((student, other))
    algorithm = Distill()
    policy = engine(student, algorithm, algorithm.roles()[0])
    policy.peers = {"policy": policy}
    batch = batch_for(algorithm)
    plan = plan_batch(batch, budget=100)
    with pytest.raises(ConfigError, match=r"set roles\.teacher\.pool"):
        policy.update(batch, plan)
