"""Methods with mistakes in each of their parts: one clear error, nothing learned wrongly."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

import rlframe
from rlframe import RoleSpec, Term
from rlframe.errors import RlframeError
from rlframe_algorithms.grpo import GRPO
from tests.e2e.small import make_model, make_questions, options

NAN = float("nan")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), make_questions(folder / "questions.jsonl")


class Method(GRPO):
    """A right one, with few samples and no reference."""

    def __init__(self, config=None):
        super().__init__(config or GRPO.Config(samples_per_prompt=2, kl_coef=0.0))


def fit(inputs, folder, algorithm, **more):
    given = options(folder, *inputs, **more)
    del given["algo"]
    return rlframe.fit(algorithm, **given)


def made(**parts):
    return type("Odd", (Method,), parts)()


def advantages(function):
    return made(advantages=lambda self, batch: function(batch))


def loss(function):
    return made(policy_loss=lambda self, out, batch: function(out, batch))


def raises(*_):
    raise ZeroDivisionError("my mistake")


def one_nan(batch):
    values = torch.ones(len(batch))
    values[3] = NAN
    return {"advantages": values}


POLICY = RoleSpec("policy", trained=True, outputs={"logprobs": "old_logprobs"})
WRONG = {
    "advantages none": (advantages(lambda b: None), "Odd.advantages returned NoneType"),
    "advantages tensor": (advantages(lambda b: torch.zeros(8)), "advantages returned Tensor"),
    "advantages raise": (advantages(raises), r"Odd.advantages raised ZeroDivisionError.*\.py:\d+"),
    "advantages nan": (advantages(one_nan), "'advantages' with nan for row 3 .group 1.*, 1 such"),
    "advantages rows": (advantages(lambda b: {"advantages": torch.zeros(3)}), "for 8 rows"),
    "advantages wide": (advantages(lambda b: {"advantages": torch.zeros(8, 99)}), "longest"),
    "advantages deep": (advantages(lambda b: {"advantages": torch.zeros(8, 4, 2)}), "longest"),
    "advantages name": (advantages(lambda b: {"advantage": torch.zeros(8)}), "Did you mean"),
    "reads": (made(reads=("rewards", "rewrads2")), "unknown column 'rewrads2'. Did you mean"),
    "loss raises": (loss(raises), r"Odd.loss raised ZeroDivisionError: my mistake \(.*\.py:\d+"),
    "metrics raise": (made(metrics=raises), "Odd.metrics raised ZeroDivisionError: my mistake"),
    "minibatch raises": (made(minibatch=raises), "Odd.minibatch raised ZeroDivisionError"),
    "loss none": (loss(lambda o, b: None), "loss term 'pg_loss': its values are NoneType"),
    "loss number": (loss(lambda o, b: 0.5), "loss term 'pg_loss': its values are float"),
    "loss reduced": (loss(lambda o, b: o.logprobs.mean()), "without reducing"),
    "loss constant": (loss(lambda o, b: b["advantages"] * 1.0), "nothing would be learned"),
    "loss detached": (loss(lambda o, b: o.logprobs.detach()), "nothing would be learned"),
    "loss whole": (made(loss=lambda s, r, o, b: o.logprobs), r"Odd.loss\(\) returned Tensor"),
    "loss bare": (made(loss=lambda s, r, o, b: {"x": o.logprobs}), "'x' as Tensor: wrap it"),
    "loss empty": (made(loss=lambda s, r, o, b: {}), "nothing would be learned"),
    "metrics none": (made(metrics=lambda s, r, o, b: None), r"Odd.metrics\(\) returned NoneType"),
    "metrics bare": (made(metrics=lambda s, r, o, b: {"x": 1.0}), "'x' as float: wrap it"),
    "metrics mask": (
        made(metrics=lambda s, r, o, b: {"x": Term(o.logprobs, mask="nowhere")}),
        "its mask 'nowhere'",
    ),
    "requests none": (made(requests=lambda s, row: None), "requests returned None"),
    "requests empty": (made(requests=lambda s, row: []), "requests gave none"),
    "requests raise": (made(requests=raises), "Odd.requests raised ZeroDivisionError"),
    "accept raises": (made(accept=raises), "Odd.accept raised ZeroDivisionError"),
    "accept never": (made(accept=lambda s, group: False), "Odd.accept refused 84"),
    "atoms rows": (made(atoms=lambda s, batch: np.zeros(3, int)), "atoms returned int64 .3,"),
    "atoms text": (made(atoms=lambda s, batch: ["a"] * 8), "one whole number a row"),
    "scalars none": (made(scalars=lambda s: None), "Odd.scalars returned NoneType"),
    "after_step raises": (made(after_step=raises), "Odd.after_step raised ZeroDivisionError"),
    "state": (made(state_dict=lambda s: {"x": object()}), "state.run.algorithm.x is a"),
    "roles none": (made(roles=lambda s: None), r"roles\(\) returned None"),
    "roles empty": (made(roles=lambda s: ()), "must begin with the policy"),
    "roles first": (made(roles=lambda s: (RoleSpec("critic"), POLICY)), "begin with the policy"),
    "roles twice": (made(roles=lambda s: (POLICY, POLICY)), "has 'policy' twice"),
    "roles rollout": (made(roles=lambda s: (POLICY, RoleSpec("rollout"))), "has 'rollout'"),
    "roles init": (
        made(roles=lambda s: (POLICY, RoleSpec("judge", init_from="polciy"))),
        "'judge' init_from: unknown role 'polciy'. Did you mean 'policy'",
    ),
    "roles untrained": (made(roles=lambda s: (RoleSpec("policy"),)), "none with trained=True"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_one_clear_error(inputs, tmp_path, monkeypatch, name):
    algorithm, message = WRONG[name]
    # Workers find a class by its module and name.
    monkeypatch.setattr(sys.modules[__name__], "Odd", type(algorithm), raising=False)
    with pytest.raises(RlframeError, match=message):
        fit(inputs, tmp_path, algorithm, steps=1)


class Counting(Method):
    """State that changes after each step and reaches the loss by a scalar."""

    def __init__(self, config=None):
        super().__init__(config)
        self.done: list[float] = []

    def scalars(self):
        return {"done": float(len(self.done))}

    def metrics(self, role, out, batch):
        return {"done": Term(batch["scalars", "done"], mask=None, reduction="mean")}

    def after_step(self, metrics):
        assert {"critic/rewards/mean", "actor/pg_loss"} <= set(metrics)
        self.done.append(metrics["training/global_step"])

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = list(state["done"])


def logged(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_state_of_a_method_changes_after_each_step_and_is_resumed(inputs, tmp_path):
    run = {"dir": str(tmp_path / "runs"), "name": "run", "save_every": 1}
    first = fit(inputs, tmp_path, Counting(), steps=2, run=run)
    assert [line["actor/done"] for line in logged(first.run_dir)] == [0.0, 1.0]
    fit(inputs, tmp_path, Counting(), steps=4, run=run, resume=first.run_dir)
    assert [line["actor/done"] for line in logged(first.run_dir)] == [0.0, 1.0, 2.0, 3.0]


class Sometimes(Method):
    """A loss without a gradient where there is nothing to learn: so from the second step on."""

    steps = 0

    def policy_loss(self, out, batch):
        if not batch["advantages"].any():
            return torch.zeros_like(out.logprobs.detach())
        return super().policy_loss(out, batch)

    def after_step(self, metrics):
        self.steps += 1

    def advantages(self, batch):
        return {"advantages": super().advantages(batch)["advantages"] * (self.steps == 0)}


def test_a_mini_batch_without_a_gradient_may_come_later(inputs, tmp_path):
    done = fit(inputs, tmp_path, Sometimes(), steps=2)
    assert [line["actor/grad_norm"] > 0 for line in logged(done.run_dir)] == [True, False]
