"""The base of every method."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rlframe import Algorithm, Column, ConfigError, RoleSpec
from rlframe.algorithm import Output


def batch_of(**columns):
    return TensorDict(columns, batch_size=[1])


class Two(Algorithm):
    columns = (Column("answer", "B", "object", "data", "what is right"),)

    def roles(self):
        critics = [
            RoleSpec(name, "value", True, {"values": column}, ("values",))
            for name, column in (("critic", "values"), ("cost_critic", "cost_values"))
        ]
        judge = RoleSpec("judge", "score", outputs={"scores": "judge_scores"})
        return (*super().roles(), *critics, judge)

    def policy_loss(self, out, batch):
        return -out.logprobs

    def value_loss(self, out, batch):
        return out.values**2


def test_every_output_of_a_role_has_a_column():
    schema = Two(Algorithm.Config(kl_coef=0.1)).schema()
    assert (schema["cost_values"].shape, schema["cost_values"].writer) == ("BR", "cost_critic")
    assert schema["judge_scores"].shape == "B"
    assert schema["answer"].dtype == "object"
    assert schema["ref_logprobs"].shape == "BR"


def test_terms_of_the_default_loss():
    ones = torch.ones(1, 2)
    out, batch = Output(logprobs=ones, entropy=ones), batch_of(ref_logprobs=ones)
    config = Algorithm.Config(kl_coef=0.1, entropy_coef=0.01, reduction="seq-mean-token-sum")
    terms = Two(config).loss("policy", out, batch)
    assert {n: (t.coef, t.reduction) for n, t in terms.items()} == {
        "pg_loss": (1.0, "seq-mean-token-sum"),
        "kl_loss": (0.1, "seq-mean-token-sum"),
        "entropy": (-0.01, "seq-mean-token-sum"),
    }
    plain = Two().loss("policy", out, batch)
    assert {n: t.coef for n, t in plain.items()} == {"pg_loss": 1.0, "entropy": 0.0}
    assert set(Two().loss("policy", Output(logprobs=ones), batch)) == {"pg_loss"}
    assert set(Two().loss("critic", Output(values=ones), batch)) == {"vf_loss"}


def test_what_a_method_lacks_is_said():
    with pytest.raises(NotImplementedError, match="neither policy_loss nor loss"):
        Algorithm().loss("policy", Output(logprobs=torch.ones(1, 1)), batch_of())
    with pytest.raises(NotImplementedError, match="no value_loss"):
        Algorithm().loss("critic", Output(), batch_of())
    with pytest.raises(AttributeError, match="'entropy' was not computed: name it in RoleSpec"):
        _ = Output(logprobs=torch.ones(1, 1)).entropy


def test_options_make_the_config():
    assert Algorithm(epochs=3).config == Algorithm.Config(epochs=3)
    with pytest.raises(ConfigError, match=r"unknown option 'epoch'\. Did you mean 'epochs'"):
        Algorithm(epoch=3)
    with pytest.raises(ConfigError, match="at least 1"):
        Algorithm(epochs=0)
    with pytest.raises(ConfigError, match="not both"):
        Algorithm(Algorithm.Config(), epochs=3)
