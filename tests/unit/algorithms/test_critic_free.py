"""Defaults, requests, filters and options of the methods without a critic."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch

from rlframe.requests import Episode, Group, Request, Row, Segment
from rlframe.testing.algorithm_cases import RowCase, make_case
from rlframe_algorithms.cispo import CISPO
from rlframe_algorithms.dapo import DAPO
from rlframe_algorithms.dppo import DPPO
from rlframe_algorithms.gdpo import GDPO
from rlframe_algorithms.gmpo import GMPO
from rlframe_algorithms.grpo import GRPO, DrGRPO
from rlframe_algorithms.gspo import GSPO
from rlframe_algorithms.reinforce import GPG, OPO, REINFORCE, RLOO, ReMax
from rlframe_algorithms.reinforce_plus_plus import REINFORCEPlusPlus, REINFORCEPlusPlusBaseline
from rlframe_algorithms.sapo import SAPO
from rlframe_algorithms.topr import TOPR

PAPER = {
    GRPO: {"advantage": "grpo", "reduction": "seq-mean-token-mean", "kl_coef": 0.04},
    DrGRPO: {"advantage": "dr-grpo", "reduction": "fixed-length", "kl_coef": 0.0},
    DAPO: {
        "advantage": "grpo",
        "clip_ratio": 0.2,
        "clip_ratio_high": 0.28,
        "reduction": "token-mean",
        "kl_coef": 0.0,
        "drop_equal_groups": True,
        "overlong_buffer": 4096 / 20480,
        "dual_clip": None,
    },
    GSPO: {"clip_ratio": 3e-4, "clip_ratio_high": 4e-4, "reduction": "seq-mean-token-mean"},
    GMPO: {"clip_log_ratio": 0.4, "clip_log_ratio_high": 0.4, "reduction": "seq-mean-token-mean"},
    CISPO: {"clip_ratio": None, "clip_ratio_high": 4.0, "reduction": "token-mean"},
    SAPO: {"tau_positive": 1.0, "tau_negative": 1.05, "reduction": "seq-mean-token-mean"},
    GDPO: {"advantage": "gdpo", "reward_weights": (), "clip_ratio": 0.2},
    DPPO: {"divergence": "tv", "anchor": "rollout", "clip_weight": 20.0},
    TOPR: {"clip_weight": 1.0, "reduction": "seq-mean-token-sum"},
    REINFORCE: {"advantage": "reward", "reduction": "seq-mean-token-sum"},
    RLOO: {"advantage": "rloo", "kl_reward_coef": 0.03, "samples_per_prompt": 4},
    ReMax: {"advantage": "remax", "samples_per_prompt": 1},
    OPO: {"advantage": "opo", "epochs": 1, "minibatch_prompts": 0, "entropy_coef": 0.0},
    GPG: {"advantage": "gpg", "reduction": "token-mean", "kl_coef": 0.0},
    REINFORCEPlusPlus: {"advantage": "reward", "kl_reward_coef": 0.01, "gamma": 1.0},
    REINFORCEPlusPlusBaseline: {"advantage": "dr-grpo", "kl_coef": 0.001, "kl_estimator": "k2"},
}


@pytest.mark.parametrize("method", PAPER, ids=lambda m: m.__name__)
def test_the_defaults_are_the_papers(method):
    config = dataclasses.asdict(method().config)
    assert {name: config[name] for name in PAPER[method]} == PAPER[method]


def group_of(outcomes, lengths=None):
    row = Row((1, 2), {}, group_id=3)
    lengths = lengths or [2] * len(outcomes)
    episodes = [
        Episode(
            Request((1, 2), episode_id=n),
            [Segment([1, 2], [5] * k, [True] * k, [0.0] * k, [0] * k, [0] * k)],
            "stop",
            reward=reward,
        )
        for n, (reward, k) in enumerate(zip(outcomes, lengths, strict=True))
    ]
    return Group(row, episodes)


@pytest.mark.parametrize(
    ("outcomes", "lengths", "kept"),
    [
        ([1.0, 0.0, 1.0], None, True),
        ([1.0, 1.0, 1.0], None, False),
        ([0.0, 0.0], None, False),
        ([0.35] * 7, None, False),
        ([0.1 + 0.2, 0.3], None, False),
        ([1.0], None, False),
        ([1.0, 1.0, 0.0], [2, 2, 0], False),
    ],
)
def test_dynamic_sampling_looks_at_what_the_advantages_look_at(outcomes, lengths, kept):
    group = group_of(outcomes, lengths)
    assert DAPO().accept(group) is kept
    assert GRPO().accept(group)
    assert GRPO(drop_equal_groups=True).accept(group) is kept


def test_the_filter_sees_the_raw_outcome():
    """Equal rewards and unequal lengths: the penalty would tell them apart, the filter does not."""
    assert not DAPO(overlong_buffer=1.0).accept(group_of([1.0, 1.0], [1, 7]))
    rows = [RowCase(0, "1", 1.0), RowCase(0, "1111111", 1.0)]
    batch = make_case(DAPO(overlong_buffer=1.0), rows).batch
    assert (batch["advantages"][:, 0] != 0).all()


def test_the_overlong_penalty_counts_sampled_tokens():
    """Limit 8, buffer 4: a tool's six tokens cost nothing, six sampled ones cost a half."""
    rows = [RowCase(0, "100000010", 1.0), RowCase(0, "111111", 1.0)]
    shaped = DAPO(overlong_buffer=0.5).shaped(make_case(DAPO(), rows).batch)
    assert shaped["rewards"].tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("longest", "lost"), [([4, 4, 1], 0.0), ([4, 6, 1], 0.5), ([8, 1, 1], 1.0)]
)
def test_the_overlong_penalty_is_of_an_episodes_longest_turn(longest, lost):
    """Limit 8 a turn, buffer 4: turns that are short in themselves cost nothing, however many."""
    rows = [RowCase(0, "1110111", 1.0, episode=3), RowCase(0, "1111111111", 1.0, episode=3),
            RowCase(0, "1", 1.0, episode=4)]  # fmt: skip
    case = make_case(DAPO(), rows, given={"turn_tokens": longest})
    shaped = DAPO(overlong_buffer=0.5).shaped(case.batch)["rewards"].tolist()
    assert shaped == [1.0 - lost, 1.0 - lost, 1.0]


def test_truncated_responses_leave_the_loss_and_stay_in_the_baseline():
    from rlframe.testing.simulated_update import micro_of

    rows = [RowCase(0, "1111", 1.0), RowCase(0, "11", 0.0)]
    given = {"finish_reason": ["length", "stop"]}
    method = GRPO(mask_truncated=True)
    batch = make_case(method, rows, given=given).batch
    mask = micro_of(batch, torch.arange(2).numpy())["loss_mask"]
    assert mask.sum(1).tolist() == [0, 2]
    assert batch["advantages"][1, 0] < 0


def test_a_tools_tokens_stay_out_of_the_loss_where_rows_are_masked():
    from rlframe.testing.simulated_update import micro_of

    batch = make_case(GRPO(mask_truncated=True), [RowCase(0, "1001", 1.0)]).batch
    mask = micro_of(batch, torch.arange(1).numpy())["loss_mask"]
    assert mask.tolist() == [[True, False, False, True]]


def test_remax_asks_for_one_greedy_sample_that_is_not_trained_on():
    row = Row((1, 2), {})
    requests = ReMax(samples_per_prompt=2).requests(row)
    assert [(r.train, r.sampling.temperature) for r in requests] == [
        (True, 1.0),
        (True, 1.0),
        (False, 0.0),
    ]
    assert len(RLOO().requests(row)) == 4


def test_any_loss_takes_the_greedy_baseline():
    assert len(GSPO(advantage="remax", samples_per_prompt=1).requests(Row((1,), {}))) == 2


def test_opo_is_on_policy():
    for options in ({"epochs": 2}, {"minibatch_prompts": 1}):
        with pytest.raises(ValueError, match="epochs must be 1 and minibatch_prompts 0 for opo"):
            OPO.Config(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"advantage": "rlo"}, "advantage must be one of grpo"),
        ({"samples_per_prompt": 1}, "samples_per_prompt must be at least 2, not 1"),
        ({"overlong_buffer": 1.5}, "overlong_buffer must be at least 0 and at most 1"),
        ({"overlong_penalty": -1.0}, "overlong_penalty"),
        ({"reward_weights": (1.0,)}, "reward_weights is read with advantage=gdpo"),
        ({"advantage": "gdpo", "kl_reward_coef": 0.1}, "reads each reward apart"),
        ({"advantage": "gdpo", "overlong_buffer": 0.1}, "reads each reward apart"),
    ],
)
def test_options_out_of_range(options, said):
    with pytest.raises(ValueError, match=said):
        GRPO.Config(**options)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        (GSPO, {"clip_ratio": 0.0}, "clip_ratio"),
        (GMPO, {"clip_log_ratio": 0.0}, "clip_log_ratio"),
        (CISPO, {"clip_ratio_high": 0.0}, "clip_ratio_high"),
        (SAPO, {"tau_negative": 0.0}, "tau_negative"),
        (DPPO, {"divergence": "js"}, "divergence must be one of tv, kl"),
        (DPPO, {"threshold": 0.0}, "threshold"),
        (DPPO, {"clip_weight": 1.0}, "clip_weight"),
        (TOPR, {"clip_weight": 0.0}, "clip_weight"),
        (REINFORCEPlusPlus, {"gamma": 1.1}, "gamma"),
        (REINFORCE, {"drop_equal_groups": True, "samples_per_prompt": 1}, "samples_per_prompt"),
    ],
)
def test_ranges(method, options, said):
    with pytest.raises(ValueError, match=said):
        method.Config(**options)


def test_a_reference_runs_only_where_a_kl_is_asked_for():
    def names(method):
        return [role.name for role in method.roles()]

    assert names(DAPO()) == names(GSPO()) == names(OPO()) == ["policy"]
    assert names(RLOO()) == names(REINFORCEPlusPlus()) == ["policy", "reference"]
    assert names(RLOO(kl_reward_coef=0.0)) == ["policy"]


def test_reinforce_plus_plus_normalises_over_the_tokens_of_the_batch():
    method = REINFORCEPlusPlus(kl_reward_coef=0.0)
    rows = [RowCase(0, "111", 1.0), RowCase(1, "1", 0.0), RowCase(1, "1011", 5.0, train=False)]
    batch = make_case(method, rows, given={"token_rewards": torch.zeros(3, 4)}).batch
    mask = batch["response_mask"] & batch["train"][:, None]
    known = batch["advantages"][mask]
    assert known.tolist() == pytest.approx([1 / 3**0.5] * 3 + [-(3**0.5)], rel=1e-5)
    assert (batch["advantages"][~mask] == 0).all()


def test_choosing_a_method_imports_no_torch():
    names = {method.__module__ for method in PAPER}
    code = f"import sys, {', '.join(sorted(names))}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
