"""PPO's roles, options, columns and state; its mathematics is in the conformance tests."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest
import torch

from rlframe.algorithm import Output
from rlframe.learning.advantages import checked_columns
from rlframe.testing.algorithm_cases import MIXED, RowCase, make_case
from rlframe.testing.simulated_update import micro_of
from rlframe.testing.toy_task import ToyTask
from rlframe_algorithms.decoupled_ppo import DecoupledPPO
from rlframe_algorithms.ppo import PPO
from rlframe_algorithms.vapo import VAPO


def test_the_defaults():
    config = PPO().config
    assert (config.gamma, config.gae_lambda, config.critic_lambda) == (1.0, 0.95, None)
    assert (config.clip_ratio, config.clip_ratio_high, config.dual_clip) == (0.2, None, None)
    assert config.value_clip == 0.5
    assert config.whiten
    assert config.reduction == "token-mean"
    vapo = VAPO().config
    assert (vapo.clip_ratio, vapo.clip_ratio_high) == (0.2, 0.28)
    assert (vapo.length_alpha, vapo.critic_lambda, vapo.nll_coef) == (0.05, 1.0, 0.1)


def test_the_critic_is_a_role_of_its_own():
    policy, critic = PPO(critic_warmup=3).roles()
    assert (policy.name, policy.from_step) == ("policy", 4)
    assert (critic.model, critic.trained, critic.from_step) == ("value", True, 0)
    assert dict(critic.outputs) == {"values": "values"}
    assert critic.init_from == "policy"
    assert [r.name for r in PPO(kl_reward_coef=0.1).roles()] == ["policy", "reference", "critic"]


def test_a_row_without_a_reward_is_in_no_statistics():
    known = (RowCase(1, "11", 1.0), RowCase(1, "101", 0.0))
    lost = (*known, RowCase(1, "111", float("nan")))
    method = PPO(gae_lambda=1.0)
    batch = make_case(method, lost).batch
    assert not batch["loss_mask"][2].any()
    assert (batch["advantages"][2] == 0).all()
    alone = make_case(method, lost).scored.take([0, 1])
    wanted = checked_columns(method, alone)["advantages"].padded()
    np.testing.assert_array_equal(batch["advantages"][:2].numpy(), wanted)


def test_advantages_are_whitened_over_the_tokens_that_count():
    batch = make_case(PPO()).batch
    kept = batch["advantages"][batch["loss_mask"]].double()
    assert kept.mean().item() == pytest.approx(0, abs=1e-6)
    assert kept.var(unbiased=False).item() == pytest.approx(1, abs=1e-5)
    assert (batch["advantages"][~batch["loss_mask"]] == 0).all()


def test_ranks_share_mean_variance_and_fit():
    """Two ranks, groups whole, with sums over both: the same columns as one."""
    method = PPO()
    case = make_case(method)
    groups = np.asarray(case.scored["group_ids"])
    parts = [np.flatnonzero(groups == 7), np.flatnonzero(groups != 7)]
    barrier, sums = threading.Barrier(2), {}

    def on_rank(rank):
        chunk, calls = case.scored.take(parts[rank]), count()

        def reduce(values):
            number = next(calls)
            sums[number, rank] = values
            barrier.wait(timeout=30)
            return sums[number, 0] + sums[number, 1]

        chunk.reduce = reduce
        return checked_columns(method, chunk)

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(on_rank, range(2)))
    for rows, columns in zip(parts, made, strict=True):
        for name, column in columns.items():
            got = torch.from_numpy(column.padded())
            wanted = case.batch[name][torch.from_numpy(rows)]
            torch.testing.assert_close(got, wanted[:, : got.shape[1]] if got.dim() > 1 else wanted)


def test_the_policy_waits_until_the_critic_is_warm():
    method = PPO(critic_warmup=3, warmup_returns="monte-carlo")
    task = ToyTask(method)
    task.run(3)
    assert task.success() == pytest.approx(0.2)
    assert method.scalars()["critic_warmup"] == 0
    task.run(5)
    assert task.success() > 0.4


def test_the_critic_learns_whole_returns_while_it_warms_up():
    method = PPO(critic_warmup=1, warmup_returns="monte-carlo", gae_lambda=0.5)
    warm = make_case(method).batch
    mask, values = warm["loss_mask"], warm["values"]
    rewards = torch.where(mask, warm["token_rewards"], 0.0)
    last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    rewards = rewards + torch.where(last, warm["rewards"][:, None], 0.0)
    to_go = rewards.flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(warm["returns"][mask], to_go[mask])
    method.after_step({})
    after = make_case(method).batch
    assert torch.equal(after["values"], values)
    assert not torch.allclose(after["returns"][mask], to_go[mask])


def test_warm_up_is_part_of_the_snapshot():
    method = PPO(critic_warmup=2)
    method.after_step({})
    copy = PPO(critic_warmup=2)
    copy.load_state_dict(method.state_dict())
    assert copy.scalars()["critic_warmup"] == 1
    copy.after_step({})
    assert copy.scalars()["critic_warmup"] == 0


def test_token_rewards_are_read_where_they_are():
    method = PPO(gae_lambda=1.0)
    scored = make_case(method).scored
    without = scored.select([n for n in scored.columns if n != "token_rewards"])
    plain = checked_columns(method, without)["returns"].padded()
    mask = make_case(method).batch["loss_mask"]
    ends = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    got = torch.from_numpy(plain)[ends]
    wanted = scored["rewards"][:, None].expand_as(mask)[ends]
    torch.testing.assert_close(got, wanted)


def test_figures_have_verls_names():
    method = PPO()
    micro = micro_of(make_case(method).batch, np.arange(len(MIXED)))
    zeros = torch.zeros_like(micro["values"])
    actor = method.metrics("policy", Output(logprobs=zeros), micro)
    assert set(actor) == {"pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"}
    critic = method.metrics("critic", Output(values=zeros), micro)
    assert {"vf_clipfrac", "vpred_mean", "vf_explained_var"} <= set(critic)
    assert len(set(micro["vf_explained_var"].tolist())) == 1


def test_vapo_raises_right_answers_alone():
    method = VAPO(correct_reward=0.5)
    micro = micro_of(make_case(method).batch, np.arange(len(MIXED)))
    right = (micro["rewards"] >= 0.5)[:, None] & micro["loss_mask"]
    assert torch.equal(micro["correct_mask"], right)
    out = Output(logprobs=torch.zeros_like(micro["values"]))
    assert method.loss("policy", out, micro)["nll_loss"].coef == 0.1
    assert set(method.loss("critic", Output(values=micro["values"]), micro)) == {"vf_loss"}


def test_decoupled_ppo_needs_its_weights():
    for wrong in ("off", "bypass"):
        with pytest.raises(ValueError, match="must be truncate or mask for decoupled PPO"):
            DecoupledPPO.Config(rollout_correction=wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gamma": 1.1}, "gamma must be at least 0 and at most 1"),
        ({"gae_lambda": -0.1}, "gae_lambda"),
        ({"critic_lambda": 2.0}, "critic_lambda"),
        ({"length_alpha": 0.0}, "length_alpha must be above 0"),
        ({"clip_ratio": 0.0}, "clip_ratio"),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"value_clip": 0.0}, "value_clip"),
        ({"critic_warmup": -1}, "critic_warmup"),
        ({"warmup_returns": "td"}, "gae, monte-carlo"),
    ],
)
def test_ranges(options, said):
    with pytest.raises(ValueError, match=said):
        PPO.Config(**options)


def test_choosing_a_method_imports_no_torch():
    names = ("ppo", "vapo", "decoupled_ppo", "clip_cov", "kl_cov")
    imports = ", ".join(f"rlframe_algorithms.{name}" for name in names)
    code = f"import sys, {imports}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
