"""Every plan that ``rlframe map --yaml`` writes is a config that places what was planned.

Strategies and engines whose packages are not here are tried by the make targets that have them.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import yaml

from rlframe.cli.main import main
from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from rlframe.host.host import PluginHost
from rlframe.host.resolve import resolve
from rlframe.interfaces.cluster import ClusterInfo
from rlframe.roles import known_roles
from rlframe.testing.models import tiny_model
from rlframe_plugins.mappers.catalogue import load_catalogue, parse_hardware
from rlframe_plugins.mappers.dataflow import ROLLOUT, Fixed, units_of
from rlframe_plugins.mappers.models import load_model
from rlframe_plugins.mappers.planner import make_plans
from rlframe_plugins.mappers.space import Wishes
from rlframe_plugins.mappers.workload import Workload
from rlframe_plugins.mappers.written import Asked as Written
from rlframe_plugins.mappers.written import plan_yaml

SCALES = [
    ("grpo", "qwen2.5-3b", "2x4:a100-80g"),
    ("ppo", "llama-2-7b", "1x8:a100-80g"),
    ("ppo", "llama-2-13b", "4x8:h100"),
    ("safe-rlhf", "llama-2-7b", "4x8:a100-80g"),
    ("grpo", "codellama-34b", "4x8:a100-80g"),
    ("grpo", "qwen2.5-0.5b", "1x1:a100-80g"),
]
PACKAGES = {"megatron": "megatron", "deepspeed": "deepspeed", "vllm": "vllm"}


def needs(*names):
    """Skip, by name, where a package is missing."""
    for name in names:
        package = PACKAGES.get(name)
        if package and find_spec(package) is None:
            pytest.skip(f"needs {package}: make test-{package}")


def made(algo, model, hardware, strategy, staleness=None):
    """Plans of a registered method's own roles."""
    load = Workload(prompts=256, samples=4, minibatch_prompts=128)
    algorithm = resolve(PluginHost().load(), "algorithm", algo).value()
    roles = [role for role in known_roles(algorithm) if not role.optional]
    strategies = {r.name: (strategy,) for r in roles} if strategy != "any" else {}
    shapes = {"policy": load_model(model)}
    fixed = {ROLLOUT: Fixed(stages=1)}
    units = units_of(roles, shapes, load, strategies=strategies, fixed=fixed)
    machine = parse_hardware(hardware, load_catalogue())
    return make_plans(units, machine, load, Wishes(staleness=staleness), 4).plans


def check(plan, folder, algo, rollout, scheduler="sync"):
    """The written config loads, and its own mapper places just what the plan says."""
    asked = Written(algo, rollout, scheduler)
    file = folder / "run.yaml"
    file.write_text(plan_yaml(plan, asked))
    config = load_config(PluginHost().load(), Asked([file])).config
    hardware, names = plan.hardware, [u.name for u in plan.units]
    info = ClusterInfo(hardware.nodes, hardware.devices, "cuda")
    placed = config.mapper.load()(config.mapper.config).place(names, config, info)
    wanted = plan.placement()
    assert (placed.pools, placed.pool_of) == (wanted.pools, wanted.pool_of)
    for unit in plan.units:
        mesh = placed.mesh_of[unit.name]
        if unit.name == ROLLOUT:
            assert (mesh.tg, mesh.pg) == (unit.way.t, 1)
            assert mesh.size // mesh.tg == unit.way.d
            assert config.rollout.config.max_batch == unit.way.micro
        else:
            assert mesh == wanted.mesh_of[unit.name]
            rows = config.role(unit.name).optim.tokens_per_microbatch / plan.workload.sequence
            assert int(rows) == unit.way.micro
    return config


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed", "megatron"])
@pytest.mark.parametrize("rollout", ["torch", "vllm"])
@pytest.mark.parametrize(("algo", "model", "hardware"), SCALES)
def test_a_plan_is_what_its_config_makes(tmp_path, strategy, rollout, algo, model, hardware):
    needs(strategy, rollout)
    if strategy == "megatron" and hardware.startswith("1x1"):
        pytest.skip("megatron on one device: as fsdp")
    for plan in made(algo, model, hardware, strategy):
        config = check(plan, tmp_path, algo, rollout)
        assert config.role("policy").strategy.name == strategy


@pytest.mark.parametrize("scheduler", ["async", "one-step-off"])
@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
def test_overlapping_plans(tmp_path, scheduler, strategy):
    needs(strategy)
    for plan in made("grpo", "qwen2.5-7b", "4x8:h100", strategy, staleness=1):
        config = check(plan, tmp_path, "grpo", "torch", scheduler)
        assert config.checkpoint.name == "transport"
        assert config.rollout.config.pool != config.role("policy").pool


def test_what_a_strategy_cannot_do_is_not_planned():
    """Mixture-of-experts models are not built by strategy megatron; mixed strategies leave it."""
    with pytest.raises(ConfigError, match="megatron.*qwen3_moe"):
        made("grpo", "qwen3-30b-a3b", "8x8:h100", "megatron")
    plan = made("grpo", "qwen3-30b-a3b", "8x8:h100", "any")[0]
    assert all(u.strategy != "megatron" for u in plan.units)


def test_the_command_writes_a_config_that_validates(tmp_path, capsys):
    """As a user would: map, then validate, on a cluster of CPUs."""
    model = tiny_model(tmp_path / "m", num_attention_heads=4, num_key_value_heads=2)
    capsys.readouterr()  # transformers imports what is installed, and some of that prints
    words = f"map --algo grpo --model {model} --hardware 1x2:cpu --strategy fsdp --prompts 8"
    given = words.split() + ["--prompt-tokens", "16", "--response-tokens", "8", "--yaml"]
    assert main(given) == 0
    text = capsys.readouterr().out
    file = tmp_path / "run.yaml"
    file.write_text(text)
    written = yaml.safe_load(text)
    assert written["model"]["path"] == str(model)
    assert written["data"] == {"prompts_per_step": 8, "max_prompt_tokens": 16}
    assert written["cluster"]["device"] == "cpu"
    assert "cpu_offload" in text
    assert "offload: true" not in text
    pytest.importorskip("ray")
    assert main(["validate", "--config", str(file), "cluster.cpus=0.5"]) == 0
    assert "placement: policy in train" in capsys.readouterr().out


def auto(model, **more):
    """The config of a run whose mapper is auto."""
    values = {"model.path": str(model), "strategy.name": "fsdp", "mapper.name": "auto", **more}
    return load_config(PluginHost().load(), Asked(values=values)).config


def settled(config, info):
    names = ["policy", "reference", ROLLOUT]
    return config.mapper.load()(config.mapper.config).settle(names, config, info)


def test_a_run_keeps_the_sizes_of_its_config(tmp_path):
    """Whatever else would be faster: strategies are built with what the config says."""
    model = tiny_model(tmp_path, num_attention_heads=4, num_key_value_heads=2)
    given = {"strategy.tp": 2, "rollout.tensor_parallel": 2, "mapper.together": ["policy+rollout"]}
    config = auto(model, **given)
    placement, same = settled(config, ClusterInfo(1, 4, "cpu"))
    assert same is config
    mesh = placement.mesh_of["policy"]
    assert mesh.tp == 2
    assert mesh.size == placement.pools[placement.pool_of["policy"]].size
    assert placement.mesh_of[ROLLOUT].tg == 2


def test_a_run_may_take_the_sizes_that_were_found(tmp_path):
    """Every role's options are those of the plan, and meshes are what strategies make of them."""
    model = tiny_model(tmp_path, num_attention_heads=4, num_key_value_heads=2)
    config = auto(model, **{"mapper.sizes": "search", "optim.tokens_per_microbatch": 1})
    placement, found = settled(config, ClusterInfo(1, 4, "cpu"))
    assert config.optim.tokens_per_microbatch == 1
    assert found.role("policy").optim.tokens_per_microbatch > 1
    assert set(found.roles) == {"policy", "reference"}
    for name in found.roles:
        role = found.role(name)
        size = placement.pools[role.pool].size
        made_of = role.strategy.load().mesh_of(role.strategy.config, size)
        assert (role.pool, made_of) == (placement.pool_of[name], placement.mesh_of[name])
    assert found.rollout.config.pool == placement.pool_of[ROLLOUT]
    assert {n: p.devices for n, p in found.pools.items()} == {
        n: p.devices for n, p in placement.pools.items()
    }


def test_a_pin_that_a_strategy_does_not_make_is_refused(tmp_path):
    pins = ["policy=train:dp1,pp1,tp2", "reference=train:dp2,pp1,tp1", "rollout=train:dp2,pp1,tp1"]
    given = {"mapper.pin": pins, "pools": {"train": {"devices": 2}}}
    config = auto(tiny_model(tmp_path), **given)
    with pytest.raises(ConfigError, match=r"role 'policy' makes dp2,pp1,tp1 of its pool"):
        settled(config, ClusterInfo(1, 2, "cpu"))
