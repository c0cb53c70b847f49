"""From models, workload and cluster to plans: exact on real costs, explained, usable."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from mapper_brute import brute_force

from rlframe_plugins.mappers.catalogue import load_catalogue, parse_hardware
from rlframe_plugins.mappers.dataflow import ROLLOUT, units_of
from rlframe_plugins.mappers.explain import binding, memory_price, shortage, why_it_loses
from rlframe_plugins.mappers.models import load_model
from rlframe_plugins.mappers.picture import page
from rlframe_plugins.mappers.planner import make_plans
from rlframe_plugins.mappers.problem import Choices
from rlframe_plugins.mappers.report import planned_dict, planned_text
from rlframe_plugins.mappers.search import Search
from rlframe_plugins.mappers.space import Wishes, build_problem
from rlframe_plugins.mappers.wellknown import WELL_KNOWN
from rlframe_plugins.mappers.workload import Workload

CATALOGUE = load_catalogue()


def plans(algo="ppo", model="llama-2-7b", hardware="2x8:a100-80g", wishes=None, trains="", **work):
    return planned_on(parse_hardware(hardware, CATALOGUE), algo, model, wishes, trains, **work)


def planned_on(hardware, algo="ppo", model="llama-2-7b", wishes=None, trains="", **work):
    flow = WELL_KNOWN[algo]
    load = Workload(samples=flow.samples, extra=flow.extra, **{"minibatch_prompts": 128, **work})
    shapes = {"policy": load_model(model)}
    chosen = {role.name: (trains,) for role in flow.roles if role.trained and trains}
    units = units_of(flow.roles, shapes, load, strategies=chosen)
    return make_plans(units, hardware, load, wishes)


@pytest.fixture(scope="module")
def ppo():
    return plans()


def thinned(choices, rng, keep):
    """A few ways of each pool size, so that brute force ends."""
    kept = []
    for grains in np.unique(choices.grains):
        here = np.flatnonzero(choices.grains == grains)
        kept += rng.choice(here, min(keep, len(here)), replace=False).tolist()
    index = np.array(sorted(kept))
    return Choices(*(column[index] for column in vars(choices).values())), index


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("staleness", [None, 1])
def test_equal_to_brute_force_on_simulated_costs(seed, staleness):
    rng = np.random.default_rng(seed)
    load = Workload(prompts=64, minibatch_prompts=32)
    units = units_of(WELL_KNOWN["remax"].roles, {"policy": load_model("qwen2.5-3b")}, load)
    hardware = parse_hardware("3x2:a100-40g@ib-100", CATALOGUE)
    problem, _ = build_problem(units, hardware, load, Wishes(staleness=staleness))
    made = [thinned(c, rng, 3) for c in problem.choices]
    whole = problem.couple
    old = [index for _, index in made]
    small = replace(
        problem,
        choices=tuple(c for c, _ in made),
        twins=tuple(range(len(units))),
        couple=lambda a, b: whole(old[0][a], old[-1][b]),
    )
    expected, found = brute_force(small), Search(small).run()
    if expected is None:
        assert found == []
    else:
        assert found[0].value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("algo", WELL_KNOWN)
def test_plans_keep_every_law(algo):
    result = plans(algo, "qwen2.5-7b", "4x8:h100", minibatch_prompts=256)
    assert result.plans[0].exact
    assert [p.seconds for p in result.plans] == sorted(p.seconds for p in result.plans)
    for plan in result.plans:
        assert plan.seconds == pytest.approx(sum(plan.stages.values()))
        assert sum(p.pool.size for p in plan.pools) <= 32
        for pool in plan.pools:
            assert 0 < pool.used <= plan.capacity
            for unit in (u for u in plan.units if u.name in pool.members):
                mesh, shape = unit.mesh, unit.unit.shape
                assert mesh.size == pool.pool.size
                assert shape.layers % mesh.pp == 0
                assert shape.heads % mesh.tp == 0
                assert pool.pool.devices % mesh.tp == 0
                if unit.unit.trained:
                    assert unit.unit.minibatch_rows % mesh.dp == 0
                for stage, seconds in unit.seconds.items():
                    assert seconds == pytest.approx(sum(unit.parts[stage].values()))
        assert set(plan.placement().pool_of) == {u.name for u in plan.units}


def test_what_is_shared_is_only_counted_once(ppo):
    """A set's memory: what stays of each member and the largest of what comes on top."""
    for plan in ppo.plans:
        for pool in plan.pools:
            mine = [u for u in plan.units if u.name in pool.members]
            stays = sum(u.memory["resident"] for u in mine)
            assert pool.used <= stays + max(u.memory["working"] for u in mine) + 1


def test_wishes_are_kept():
    apart = plans("grpo", "qwen2.5-7b", "4x8:h100", Wishes(staleness=1))
    for plan in apart.plans:
        assert (ROLLOUT,) in plan.sets()
    pair = frozenset({"policy", "critic"})
    for plan in plans(wishes=Wishes(together=(pair,))).plans:
        assert any(pair <= set(members) for members in plan.sets())


def test_more_devices_are_never_worse_and_more_memory_neither():
    small, large = plans(hardware="2x8:a100-80g"), plans(hardware="4x8:a100-80g")
    assert large.plans[0].seconds < small.plans[0].seconds
    tight = plans(hardware="2x8:a100-40g@8xib-200")
    roomy = plans(hardware="2x8:a100-80g")
    assert roomy.plans[0].seconds < tight.plans[0].seconds


def test_overlapping_is_never_slower_than_its_parts():
    result = plans("grpo", "qwen2.5-7b", "4x8:h100", Wishes(staleness=1))
    plan = result.plans[0]
    assert plan.seconds < sum(plan.stages.values())
    assert plan.seconds >= max(plan.stages.values())


def test_reasons(ppo):
    best, other = ppo.plans[:2]
    what = binding(best)
    assert set(what) == {"collect", "prepare", "learn", "publish"}
    assert what["learn"][1] == "arithmetic"
    assert what["collect"][1] == "device-memory bandwidth"
    text = why_it_loses(best, other)
    assert f"{(other.seconds / best.seconds - 1) * 100:.1f} % slower" in text
    assert "not proven" in text
    price = memory_price(plans(model="llama-2-13b", hardware="1x8:a100-80g"))
    assert price is not None
    assert "GB more a device" in price


def test_what_does_not_fit_says_by_how_much_and_what_would():
    given = {"algo": "grpo", "model": "llama-2-70b", "trains": "megatron"}
    result = plans(hardware="1x8:a100-80g", **given)
    assert result.plans == ()
    why = shortage(result, CATALOGUE)
    assert why.unit == "policy"
    assert why.missing >= why.needs - result.hardware.capacity > 0
    assert why.host_missing is None, "megatron keeps nothing there"
    assert "on 4 nodes of 8 devices" in str(why)
    assert plans(hardware="4x8:a100-80g", **given).plans
    assert not plans(hardware="2x8:a100-80g", **given).plans
    assert "b200" in str(why)
    assert plans(hardware="1x8:b200", **given).plans


def test_host_memory_is_bounded_and_told():
    given = {"model": "llama-2-70b"}
    few = plans(hardware="1x2:a100-80g", **given)
    assert few.plans == ()
    why = shortage(few, CATALOGUE)
    assert why.host_missing is not None
    assert f"a host {why.host_missing / 1e9:.1f} GB beside its" in str(why)
    told = re.search(r"with (\d+) GiB of host memory a node", str(why))
    enough = few.hardware.with_host(float(told[1]))
    assert enough.host_capacity == pytest.approx(
        few.hardware.host_capacity + why.host_missing, rel=1e-3
    )
    assert planned_on(enough, **given).plans
    assert not planned_on(enough.with_host(float(told[1]) * 0.97), **given).plans


def test_what_lies_in_host_memory_is_accounted():
    result = plans(model="llama-2-70b", hardware="2x8:a100-80g")
    best = result.plans[0]
    states = sum(u.unit.shape.parameters * (2 + 4 + 12) for u in best.units if u.unit.trained)
    assert all(u.way.offload for u in best.units if u.unit.trained)
    held = sum(sum(u.host.values()) * u.way.devices / 8 for u in best.units if u.unit.trained)
    assert held == pytest.approx(states, rel=0.01)
    for pool in best.pools:
        assert pool.host <= best.host_capacity
        assert pool.host == sum(sum(best.unit(n).host.values()) for n in pool.members)
    assert "GB a host: weights" in planned_text(result)
    assert "GB a host: weights" in page(result)
    first = planned_dict(result)["plans"][0]
    assert 0 < first["pools"][0]["host_bytes"] <= first["pools"][0]["host_capacity_bytes"]


def test_pools_of_one_node_share_its_host():
    """A pool may use what the others leave, and all of them no more than there is."""
    apart = Wishes(staleness=1)
    given = {"model": "llama-2-13b", "algo": "grpo", "wishes": apart, "trains": "fsdp"}
    hardware = parse_hardware("1x4:a100-40g", CATALOGUE)
    bound = 0
    for gib in (4096, 512, 384, 256, 192):
        found = planned_on(hardware.with_host(gib), **given).plans
        for plan in found:
            held = [pool.host for pool in plan.pools]
            assert sum(held) <= plan.host_capacity
            assert len(held) > 1
            bound += max(h / p.pool.size for h, p in zip(held, plan.pools, strict=True)) > (
                plan.host_capacity / hardware.size
            )
    assert bound, "one of them uses more than an even share"


def test_weights_pass_through_the_host_to_an_engine_of_its_own():
    flow, load = WELL_KNOWN["ppo"], Workload(minibatch_prompts=128)
    hardware = parse_hardware("1x8:a100-80g", CATALOGUE)
    seen = {}
    for engine in ("torch", "vllm"):
        units = units_of(flow.roles, {"policy": load_model("llama-2-7b")}, load, engine=engine)
        problem, spaces = build_problem(units, hardware, load)
        away = spaces[-1].host.get("passing", np.zeros(1))
        seen[engine] = (float(away.max()), float(problem.couple(*_alike(spaces))[1].max()))
    weights = 2.0 * load_model("llama-2-7b").parameters
    assert seen["torch"][0] == 0 < seen["torch"][1]
    assert seen["vllm"] == (8 * weights, 0.0)


def _alike(spaces):
    """Every pair of ways of the policy and the rollout on the whole node."""
    a, b = (np.flatnonzero(s.grid.devices == 8) for s in (spaces[0], spaces[-1]))
    return np.repeat(a, len(b)), np.tile(b, len(a))


def test_host_memory_that_binds_is_told():
    hardware = parse_hardware("1x8:a10", CATALOGUE)
    bound, free = (planned_on(hardware.with_host(gib)) for gib in (300, 400))
    assert "host memory binds: with" in planned_text(bound)
    told = re.search(r"more a host a step would take ([\d.]+) s", memory_price(bound))
    assert float(told[1]) == pytest.approx(free.plans[0].seconds, abs=0.1)
    assert "more a host" not in memory_price(free)


def test_less_host_memory_is_never_faster():
    hardware = parse_hardware("2x8:a100-80g", CATALOGUE)
    seconds = []
    for gib in (4096, 2048, 1500, 1024):
        found = planned_on(hardware.with_host(gib), model="llama-2-70b").plans
        seconds.append(found[0].seconds if found else np.inf)
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]


def test_json_has_what_was_promised(ppo):
    answer = json.loads(json.dumps(planned_dict(ppo)))
    assert answer["search_s"] > 0
    first = answer["plans"][0]
    assert first["step_s"] == ppo.plans[0].seconds
    assert {"stages_s", "pools", "units", "binds", "tokens_per_s"} <= set(first)
    assert all("loses" in plan for plan in answer["plans"][1:])
    assert all((u["memory_bytes"]["weights"] > 0) != u["offload"] for u in first["units"])


def test_text_names_everything(ppo):
    text = planned_text(ppo)
    for word in ("policy", "critic", "reference", "reward", "rollout", "searched in", "% slower"):
        assert word in text


def test_the_page_is_whole_and_self_contained():
    for wishes in (None, Wishes(staleness=2)):
        text = page(plans("grpo", "qwen2.5-7b", "4x8:h100", wishes))
        assert text.startswith("<!doctype html>")
        assert "http" not in text
        svgs = text.split("<svg")[1:]
        assert len(svgs) >= 4
        for svg in svgs:
            root = ElementTree.fromstring("<svg" + svg.split("</svg>")[0] + "</svg>")
            assert list(root)
