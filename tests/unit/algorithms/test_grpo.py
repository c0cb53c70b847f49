"""GRPO's options, roles and figures; its mathematics is in the conformance tests."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from tensordict import TensorDict

from rlframe.algorithm import Output
from rlframe.requests import Row, Sampling
from rlframe_algorithms.grpo import GRPO


def test_the_defaults_are_the_papers():
    config = GRPO().config
    assert (config.clip_ratio, config.kl_coef) == (0.2, 0.04)
    assert config.reduction == "seq-mean-token-mean"
    assert config.advantage == "grpo"


def test_one_sample_has_no_baseline():
    with pytest.raises(ValueError, match="samples_per_prompt must be at least 2, not 1"):
        GRPO.Config(samples_per_prompt=1)


def test_the_reference_is_a_role_only_where_it_is_needed():
    policy, reference = GRPO().roles()
    assert policy.trained
    assert dict(policy.outputs) == {"logprobs": "old_logprobs"}
    assert not reference.trained
    assert dict(reference.outputs) == {"logprobs": "ref_logprobs"}
    assert reference.init_from == "policy"
    assert [r.name for r in GRPO(GRPO.Config(kl_coef=0)).roles()] == ["policy"]


def test_one_request_a_sample_under_the_runs_sampling():
    row = Row((1, 2), {}, sampling=Sampling(temperature=0.7))
    requests = GRPO(GRPO.Config(samples_per_prompt=3)).requests(row)
    assert [r.prompt_ids for r in requests] == [(1, 2)] * 3
    assert all(r.sampling.temperature == 0.7 and r.train for r in requests)


def test_figures():
    old = torch.tensor([[math.log(0.5), math.log(0.5), math.log(0.5)]])
    new = torch.tensor([[math.log(0.9), math.log(0.5), math.log(0.9)]])
    advantages = torch.tensor([[1.0, 1.0, -1.0]])
    batch = TensorDict({"old_logprobs": old, "advantages": advantages}, batch_size=[1])
    algorithm = GRPO(GRPO.Config(dual_clip=1.5))
    figures = algorithm.metrics("policy", Output(logprobs=new), batch)
    assert figures["pg_clipfrac"].values.tolist() == [[1, 0, 0]]
    assert figures["pg_clipfrac_lower"].values.tolist() == [[0, 0, 1]]
    shift = math.log(0.5) - math.log(0.9)
    assert figures["ppo_kl"].values[0].tolist() == pytest.approx([shift, 0, shift])
    assert algorithm.metrics("critic", Output(), batch) == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip_ratio": 0.0}, "clip_ratio"),
        ({"clip_ratio": 1.5}, "clip_ratio must be above 0 and at most 1, not 1.5"),
        ({"clip_ratio_high": -0.1}, "clip_ratio_high must be above 0, not -0.1"),
        ({"samples_per_prompt": 1}, "samples_per_prompt must be at least 2, not 1: "),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"reduction": "token_mean"}, "token-mean, seq-mean-token-mean"),
        ({"kl_estimator": "k4"}, "k1, k2, k3, k3+"),
        ({"kl_coef": -1.0}, "kl_coef"),
        ({"samples_per_prompt": 0}, "at least 1"),
    ],
)
def test_ranges(options, said):
    with pytest.raises(ValueError, match=said.replace("+", r"\+")):
        GRPO.Config(**options)


def test_choosing_a_method_imports_no_torch():
    code = (
        "import sys, rlframe_algorithms.grpo, rlframe_algorithms.sft; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
