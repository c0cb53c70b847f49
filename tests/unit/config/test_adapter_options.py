"""Options of adapters that a role inherits, and those that would do nothing."""

from __future__ import annotations

import pytest

from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from rlframe.host.host import current_host


def load(**values):
    return load_config(current_host(), Asked(values=values)).config


def test_a_role_without_adapters_inherits_their_options():
    config = load(
        algo={"name": "ppo"},
        model={"lora": {"rank": 8, "alpha": 8.0, "targets": ["q_proj"]}},
        roles={"critic": {"model": {"lora": {"rank": 0}}}},
    )
    assert config.role("policy").model.lora.rank == 8
    assert config.role("critic").model.lora.rank == 0


@pytest.mark.parametrize("odd", [{"alpha": 8.0}, {"dropout": 0.1}, {"targets": ["q_proj"]}])
def test_options_without_a_rank_are_an_error(odd):
    with pytest.raises(ConfigError, match=r"need model\.lora\.rank above 0"):
        load(model={"lora": odd})


def test_tensor_parallelism_and_adapters_are_refused_for_each_role():
    fsdp = {"name": "fsdp", "tp": 2}
    with pytest.raises(ConfigError, match="under tensor parallelism"):
        load(
            algo={"name": "ppo"},
            strategy="fsdp",
            roles={"critic": {"strategy": fsdp, "model": {"lora": {"rank": 4}}}},
        )
