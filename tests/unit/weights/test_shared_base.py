"""Which roles are the frozen base of one that is trained by adapters."""

from __future__ import annotations

import importlib.util

import pytest

from rlframe.build import engine_specs
from rlframe.calling.protocol import Mesh
from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from rlframe.host.host import current_host
from rlframe.interfaces.cluster import Placement, ResourcePool
from rlframe.testing.models import tiny_model
from rlframe.weights.shared_base import with_shared_bases
from rlframe_strategies.single import SingleStrategy

KL = {"algo": {"name": "grpo", "kl_coef": 0.01}}


def shared(folder, **more):
    path = tiny_model(folder / "model")
    values = {"model": {"path": str(path), "lora": {"rank": 4}}, **KL, **more}
    flags = {"data": "builtin:arithmetic?split=train"}
    config = load_config(current_host(), Asked(values=values, flags=flags)).config
    algorithm = config.algo.load()(config.algo.config)
    specs = engine_specs(config, algorithm, 1.0, 8)
    pools = {name: ResourcePool(name) for name in config.pools}
    pool_of = {name: config.role(name).pool for name in specs}
    placement = Placement(pools, pool_of, dict.fromkeys(specs, Mesh()))
    found = with_shared_bases(specs, config, placement)
    return {name: spec.base_of for name, spec in found.items()}


def test_the_reference_is_the_policy_s_base(tmp_path):
    assert shared(tmp_path) == {"policy": "", "reference": "policy"}


def test_a_critic_has_a_model_of_its_own(tmp_path):
    found = shared(tmp_path, algo={"name": "ppo", "kl_coef": 0.01})
    assert found["critic"] == found["policy"] == ""
    assert found["reference"] == "policy"


@pytest.mark.parametrize(
    "more",
    [
        {"model": {"lora": {"rank": 0}}},
        {"roles": {"reference": {"pool": "other"}}, "pools": {"other": {"devices": 1}}},
        {"roles": {"reference": {"strategy": "fsdp"}}},
        {"roles": {"reference": {"strategy": {"packing": "off"}}}},
        {"roles": {"reference": {"model": {"dtype": "bfloat16"}}}},
        {"roles": {"reference": {"model": {"path": "pkg:rlframe_templates/models/tiny"}}}},
    ],
)
def test_another_model_strategy_or_pool_means_weights_of_its_own(tmp_path, more):
    if "model" in more:
        more = {"model": {"path": str(tiny_model(tmp_path / "model")), **more["model"]}}
    assert shared(tmp_path, **more) == {"policy": "", "reference": ""}


def test_a_role_may_say_that_it_trains_no_adapters(tmp_path):
    found = shared(tmp_path, roles={"policy": {"model": {"lora": {"rank": 0}}}})
    assert found == {"policy": "", "reference": ""}


def test_a_strategy_that_trains_no_adapters_is_refused_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match=r"trains no adapters: use --strategy ddp or fsdp"):
        shared(tmp_path, strategy={"name": f"{__file__}:NoAdapters"})


class NoAdapters(SingleStrategy):
    """A strategy that does not claim them."""

    capabilities = frozenset({"packing"})


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_adapters_without_peft_name_what_installs_it(strategy, tmp_path, monkeypatch):
    plain = importlib.util.find_spec
    hidden = lambda name, *more: None if name == "peft" else plain(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    with pytest.raises(
        ConfigError, match=r"needs the package 'peft': pip install 'rlframe\[peft\]'"
    ):
        shared(tmp_path, strategy=strategy)
