"""Rollout correction, applied by the base to any method's loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlframe import Algorithm
from rlframe.algorithm import Output
from rlframe.errors import ConfigError
from rlframe.learning.advantages import checked_columns, columns_read
from rlframe.learning.loss import count_denominators, loss_share
from rlframe.testing.algorithm_cases import RowCase, make_case
from rlframe.testing.simulated_update import micro_of

ROWS = (RowCase(1, "111", 1.0), RowCase(1, "101", 0.0), RowCase(1, "11", 1.0, train=False))
ROLLOUT = torch.tensor([[0.1, 0.1, 0.1], [0.4, 0.9, 0.2], [0.1, 0.1, 0.1]])
OLD = torch.tensor([[0.1, 0.3, 0.01], [0.2, 0.1, 0.3], [0.1, 0.1, 0.1]])


class Plain(Algorithm):
    """The likelihood of what was sampled."""

    reads = ()

    def policy_loss(self, out, batch):
        return -out.logprobs


def micro_with(**options):
    method = Plain(**options)
    given = {"rollout_logprobs": ROLLOUT.log(), "old_logprobs": OLD.log()}
    batch = make_case(method, ROWS, given=given).batch
    return method, micro_of(batch, np.arange(3))


def gradient(method, micro):
    logprobs = OLD.log().requires_grad_()
    counts = count_denominators(micro, method.masks, lambda x: x, rows=3)
    share, _ = loss_share(method, "policy", Output(logprobs=logprobs), micro, counts)
    share.backward()
    return logprobs.grad


def test_off_reads_no_tokens_and_weighs_none():
    method, micro = micro_with()
    assert columns_read(method) == ()
    assert gradient(method, micro)[micro["loss_mask"]].tolist() == pytest.approx([-0.2] * 5)


def test_truncate_weighs_each_token_up_to_the_cap():
    method, micro = micro_with(rollout_correction="truncate")
    assert columns_read(method) == ()
    wanted = [1, 2, 0.1, 0.5, 1.5]
    got = gradient(method, micro)[micro["loss_mask"]] * -5
    assert got.tolist() == pytest.approx(wanted)


def test_rejected_tokens_leave_the_denominator():
    method, micro = micro_with(rollout_correction="mask", rollout_high=2.0)
    kept = [[True, False, False], [True, False, True], [False] * 3]
    assert micro["loss_mask"].tolist() == kept
    got = gradient(method, micro)
    assert got[micro["loss_mask"]].tolist() == pytest.approx([-1 / 3, -0.5 / 3, -1.5 / 3])
    assert (got[~micro["loss_mask"]] == 0).all()


def test_a_sequence_has_the_product_of_its_weights():
    method, micro = micro_with(rollout_correction="truncate", rollout_level="sequence")
    got = gradient(method, micro)[micro["loss_mask"]] * -5
    assert got.tolist() == pytest.approx([0.3] * 3 + [0.75] * 2)


def test_a_rejected_sequence_is_out_as_a_whole():
    options = {"rollout_correction": "mask", "rollout_level": "sequence"}
    _, micro = micro_with(**options)
    assert micro["loss_mask"].tolist() == [[False] * 3, [True, False, True], [False] * 3]
    _, micro = micro_with(**options, rollout_low=0.0, rollout_high=0.5)
    assert micro["loss_mask"].tolist() == [[True] * 3, [False] * 3, [False] * 3]


def test_bypass_takes_the_samplers_probabilities_and_weighs_nothing():
    method, micro = micro_with(rollout_correction="bypass")
    assert [dict(role.outputs) for role in method.roles()] == [{}]
    assert torch.equal(micro["old_logprobs"], micro["rollout_logprobs"])
    assert gradient(method, micro)[micro["loss_mask"]].tolist() == pytest.approx([-0.2] * 5)


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        ([[False, True, True]] * 3, [[False] * 3, [False, False, True]]),
        ([True, False, True], [[True, False, False], [False] * 3]),
    ],
)
def test_rejection_meets_the_methods_own_mask(own, kept):
    class Half(Plain):
        def advantages(self, batch):
            return {"loss_mask": torch.tensor(own)}

    method = Half(rollout_correction="mask", rollout_high=2.0)
    given = {"rollout_logprobs": ROLLOUT.log(), "old_logprobs": OLD.log()}
    scored = make_case(method, ROWS, given=given).scored
    assert checked_columns(method, scored)["loss_mask"].padded()[:2].tolist() == kept


def test_responses_that_the_data_writes_have_no_sampler():
    class Written(Plain):
        offline = True

    with pytest.raises(ConfigError, match="the data writes them"):
        Written(rollout_correction="truncate")
    assert Written().config.rollout_correction == "off"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rollout_correction": "tis"}, "off, truncate, mask, bypass"),
        ({"rollout_level": "word"}, "token, sequence"),
        ({"rollout_cap": 0.0}, "rollout_cap must be above 0"),
        ({"rollout_low": -1.0}, "rollout_low"),
        ({"rollout_low": 6.0}, "rollout_low must be at most rollout_high"),
    ],
)
def test_ranges(options, said):
    with pytest.raises(ValueError, match=said):
        Plain.Config(**options)
