"""Distillation: options that fit together, roles that each form needs."""

from __future__ import annotations

import pytest

from rlframe_algorithms.distill import Distill


def test_the_full_form_measures_beside_and_needs_no_column():
    policy, teacher = Distill(divergence="jsd", top_k=8, mix=0.2).roles()
    assert (policy.divergence.role, policy.divergence.kind) == ("teacher", "jsd")
    assert (policy.divergence.top_k, policy.divergence.mix) == (8, 0.2)
    assert "divergence" in policy.computes
    assert not policy.outputs
    assert not teacher.outputs
    assert Distill().reads == ()


def test_the_sampled_form_reads_the_teachers_log_probabilities():
    method = Distill(form="sampled", kl_coef=0.1)
    assert [role.name for role in method.roles()] == ["policy", "reference", "teacher"]
    assert method.roles()[-1].outputs == {"logprobs": "teacher_logprobs"}
    assert method.reads == ("old_logprobs", "teacher_logprobs")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"form": "sampled", "divergence": "jsd"}, "take form=full"),
        ({"form": "sampled", "top_k": 4}, "take form=full"),
        ({"clip_ratio": 0.2}, "form=full has no ratio"),
        ({"mix": 1.0}, "mix"),
        ({"mix": 0.0}, "mix"),
        ({"top_k": -1}, "top_k"),
        ({"form": "half"}, "form"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Distill.Config(**options)
