from __future__ import annotations

import numpy as np
import pytest

from rlframe_plugins.mappers.catalogue import load_catalogue, parse_hardware
from rlframe_plugins.mappers.collectives import all_gather, all_reduce
from rlframe_plugins.mappers.dataflow import Unit
from rlframe_plugins.mappers.grid import RECOMPUTE, SCHEMES, Grid
from rlframe_plugins.mappers.models import ModelShape, load_model
from rlframe_plugins.mappers.publish import (
    receive_seconds,
    same_layout,
    send_seconds,
    transition_seconds,
)
from rlframe_plugins.mappers.simulate_generate import decode_round, simulate_generate
from rlframe_plugins.mappers.simulate_infer import simulate_infer
from rlframe_plugins.mappers.simulate_train import simulate_train
from rlframe_plugins.mappers.workload import Lengths, Workload, parse_lengths

SHAPE = load_model("llama-2-7b")
WORK = Workload(prompts=256, minibatch_prompts=64)
UNIT = Unit("policy", SHAPE, infers=True, trained=True, minibatch_rows=64)


def machine(text="2x8:a100-80g"):
    return parse_hardware(text, load_catalogue())


def way(scheme="megatron", t=1, p=1, d=16, micro=1, recompute="selective", offload=0):
    codes = (SCHEMES.index(scheme), RECOMPUTE.index(recompute), offload, micro)
    return Grid.of([(1, t * p * d, t, p, d, *codes)])


def learn(**sizes):
    return simulate_train(UNIT, way(**sizes), machine(), WORK)


def test_training_takes_three_forwards_and_four_with_recomputation():
    score = simulate_infer(UNIT, way(micro=2), machine(), WORK).compute[0]
    once = learn(micro=2, recompute="none").compute[0]
    assert once / score == pytest.approx(3)
    assert learn(micro=2, recompute="full").compute[0] / score == pytest.approx(4)
    assert 3 < learn(micro=2).compute[0] / score < 3.3


def test_flops_of_a_token():
    """2 P of the layers, half of 4 L h s, and 2 h V at response positions."""
    hardware = machine("1x1:a100-80g")
    work = Workload(prompts=1, prompt_tokens=1024, responses=Lengths((1024.0,)))
    seconds = simulate_infer(UNIT, way(d=1), hardware, work).compute[0]
    layers = 2048 * (2 * SHAPE.layer_parameters + 2 * 32 * 4096 * 2048)
    assert seconds * hardware.flops == pytest.approx(layers + 1024 * 2 * 4096 * 32000)


def test_pipelines_idle_by_their_depth():
    cost = learn(p=4, d=4, micro=1)
    work = cost.seconds[0] - cost.bubble[0]
    updates, micros = 4, 16
    per_turn = cost.bubble[0] / updates / 3
    assert cost.bubble[0] > 0
    assert work > per_turn * micros * updates * 0.9
    assert learn(p=1, d=16).bubble[0] == 0


def test_small_micro_batches_are_less_efficient():
    seconds = [float(learn(micro=m).seconds[0]) for m in (1, 2, 4)]
    assert seconds == sorted(seconds, reverse=True)
    hardware, short = machine(), Workload(prompts=64, prompt_tokens=8, responses=Lengths((8.0,)))
    unit = Unit("policy", SHAPE, trained=True, minibatch_rows=64)
    tiny = simulate_train(unit, way(d=16), hardware, short)
    assert tiny.compute[0] / tiny.seconds[0] < 0.2


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_gives_finite_positive_seconds(scheme):
    seconds = learn(scheme=scheme).seconds[0]
    assert np.isfinite(seconds)
    assert seconds > 0


def test_offloading_costs_time():
    assert learn(offload=1).link[0] > learn(offload=0).link[0]


def test_published_training_times():
    """Megatron-LM on A100 (2205.05198, table 5), seconds an iteration; nothing is fitted."""
    rows = [  # layers, hidden, heads, t, p, batch, micro, full, selective
        (48, 6144, 64, 8, 1, 4, 4, 1.42, 1.10),
        (96, 12288, 96, 8, 8, 64, 1, 18.13, 13.75),
        (105, 20480, 128, 8, 35, 280, 1, 49.05, 37.83),
        (128, 25600, 160, 8, 64, 512, 1, 94.42, 71.49),
    ]
    for layers, hidden, heads, t, p, batch, micro, full, selective in rows:
        width = hidden // heads
        shape = ModelShape("x", layers, hidden, heads, heads, width, 8 * hidden // 3, 51200)
        unit = Unit("policy", shape, trained=True, minibatch_rows=batch)
        work = Workload(prompts=batch, prompt_tokens=0, responses=Lengths((2048.0,)))
        hardware = machine(f"{t * p // 8}x8:a100-80g")
        for how, reported in (("full", full), ("selective", selective)):
            grid = way(t=t, p=p, d=1, micro=micro, recompute=how)
            predicted = simulate_train(unit, grid, hardware, work).seconds[0]
            assert predicted == pytest.approx(reported, rel=0.25)


# --- generation ------------------------------------------------------------------------------

ROLLOUT = Unit("rollout", SHAPE, generates=True)


def collect(work, t=1, d=16, held=1 << 20):
    return simulate_generate(ROLLOUT, way(t=t, d=d, micro=held), machine(), work).seconds[0]


def test_decoding_a_small_batch_is_bound_by_memory():
    cost = decode_round(ROLLOUT, way(), machine(), np.array([1.0]), 100.0)
    assert cost.memory[0] > 10 * cost.compute[0]
    weights = 2 * SHAPE.layer_parameters / machine().memory_rate
    assert cost.memory[0] == pytest.approx(weights, rel=0.1)


def test_pipelined_decoding_pays_for_its_hops():
    """As many sequences a device: the same reads, but hidden states cross stages."""
    alone = decode_round(ROLLOUT, way(t=8, d=2), machine(), np.array([32.0]), 512.0)
    staged = decode_round(ROLLOUT, way(t=8, p=2, d=1), machine(), np.array([64.0]), 512.0)
    assert staged.memory[0] == pytest.approx(alone.memory[0], rel=0.05)
    assert staged.link[0] > alone.link[0]


def test_less_memory_means_more_waves():
    work = Workload(prompts=1024)
    seconds = [float(collect(work, held=h)) for h in (64, 32, 16, 8)]
    assert seconds == sorted(seconds)
    assert collect(work, held=64) == collect(work, held=1 << 20)


def test_tensor_parallel_generation_is_faster_but_not_in_proportion():
    work = Workload(prompts=16)
    one, eight = collect(work, t=1, d=16), collect(work, t=8, d=2)
    assert one / 8 < eight < one


def test_heavy_tails_cost_less_than_their_longest_and_more_than_their_mean():
    def seconds(text):
        return collect(Workload(prompts=1024, prompt_tokens=64, responses=parse_lengths(text)))

    heavy = seconds("geometric:mean=300,max=1100")
    mean = parse_lengths("geometric:mean=300,max=1100").mean
    assert seconds(str(int(mean))) < heavy < seconds("1100")


def test_a_prompt_is_prefilled_once_for_its_samples():
    wide = Workload(prompts=1024, samples=1, prompt_tokens=4096, responses=Lengths((1.0,)))
    grouped = Workload(prompts=128, samples=8, prompt_tokens=4096, responses=Lengths((1.0,)))
    assert collect(grouped) < collect(wide) / 3


# --- communication ---------------------------------------------------------------------------


def test_rings_share_the_adapters_of_a_node():
    hardware = machine("4x8:a100-80g")
    total = np.array([8e9])
    narrow = all_gather(hardware, total, np.array([32]), np.array([1]))
    assert all_gather(hardware, total, np.array([4]), np.array([8])) > narrow
    assert all_reduce(hardware, total, np.array([8]), np.array([1])) == 2 * all_gather(
        hardware, total, np.array([8]), np.array([1])
    )
    assert all_gather(hardware, total, np.array([1]), np.array([1]))[0] == 0


@pytest.mark.parametrize(
    ("p", "t", "pg", "tg"), [(1, 4, 1, 2), (1, 8, 1, 2), (2, 4, 1, 2), (2, 4, 2, 1), (1, 8, 1, 8)]
)
def test_transition_receives_what_the_paper_says(p, t, pg, tg):
    """(t p - tg pg)/(tg pg t p) M a device, inside a node."""
    hardware = machine("1x8:a100-80g")
    source, target = way(t=t, p=p, d=8 // (t * p)), way(t=tg, p=pg, d=8 // (tg * pg))
    whole = 2 * SHAPE.parameters
    received = (t * p - tg * pg) / (tg * pg * t * p) * whole
    latency = hardware.constants.link_latency_s if received else 0.0
    seconds = transition_seconds(SHAPE, source, target, hardware)[0]
    assert seconds == pytest.approx(received / hardware.link_rate + latency, rel=1e-6)
    assert same_layout(source, target)[0] == (received == 0)


def test_sharded_weights_arrive_once_a_node():
    """FSDP over 2 nodes: half of the model comes over the network, whatever tg is."""
    hardware = machine("2x8:a100-80g@ib-100")
    source = way("fsdp", d=16)
    half = SHAPE.parameters * 2 / 2 / hardware.node_rate
    for tg in (1, 2, 8):
        seconds = transition_seconds(SHAPE, source, way(t=tg, d=16 // tg), hardware)[0]
        assert seconds == pytest.approx(half, rel=0.01)


def test_wide_training_groups_stay_inside_nodes_when_only_tensor_changes():
    """kp = 1: micro data-parallel groups lie inside a node, so nothing crosses the network."""
    hardware = machine("2x8:a100-80g@ib-100")
    source, target = way(t=8, p=2, d=1), way(t=2, p=2, d=4)
    whole = 2 * SHAPE.parameters
    lacks = whole * (1 / 4 - 1 / 16)
    seconds = transition_seconds(SHAPE, source, target, hardware)[0]
    assert seconds == pytest.approx(lacks / hardware.link_rate, rel=0.01)


def test_other_pools_wait_for_the_slower_side():
    hardware = machine("4x8:a100-80g@ib-200")
    whole = 2 * SHAPE.parameters
    assert send_seconds(SHAPE, way(d=16), hardware)[0] == pytest.approx(
        whole / 2 / hardware.node_rate
    )
    assert receive_seconds(SHAPE, way(t=2, d=4), hardware)[0] == pytest.approx(
        whole / hardware.node_rate, rel=0.01
    )
