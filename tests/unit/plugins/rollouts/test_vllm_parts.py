"""The pure parts of rollout vllm: requests, arguments, names and boxes, memory that is shared."""

from __future__ import annotations

import os

import pytest
import torch

from rlframe.config import ModelConfig
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.interfaces.strategy import RankInfo
from rlframe.requests import Request, Sampling
from rlframe.testing.models import tiny_model
from rlframe.weights.layout import Layout, ParamInfo
from rlframe_plugins.rollouts.hosted.config import longest
from rlframe_plugins.rollouts.hosted.parcel import Parcel, opened_parcel
from rlframe_plugins.rollouts.vllm.config import VLLMConfig
from rlframe_plugins.rollouts.vllm.engine import VLLMRollout
from rlframe_plugins.rollouts.vllm.parts import assembled, merged_parts, qkv_parts, renamed
from rlframe_plugins.rollouts.vllm.translate import engine_arguments, job_of

# --- requests -------------------------------------------------------------------------------------


def test_a_request_becomes_vllms():
    sampling = Sampling(0.7, 0.9, 5, 0.1, 30, 4, ("x",), (9, 3))
    job = job_of(Request((1, 2), sampling, deadline_s=2.0), ends=(2,), limit=20, seed=2**64 - 1)
    assert (job.prompt_ids, job.stop, job.min_new_tokens, job.deadline_s) == ((1, 2), ("x",), 4, 2)
    assert job.sampling == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 2**63 - 1,
        "max_tokens": 20,
        "min_tokens": 4,
        "stop_token_ids": [2, 3, 9],
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }


def test_a_greedy_request_asks_for_nothing_that_changes_log_probabilities():
    sampling = Sampling(temperature=0, top_p=0.5, top_k=3, min_p=0.3)
    found = job_of(Request((1,), sampling), (), 5, 7).sampling
    assert not {"top_p", "top_k", "min_p", "seed"} & set(found)


def test_the_room_left_bounds_min_new_tokens_too():
    job = job_of(Request((1,), Sampling(max_new_tokens=9, min_new_tokens=9)), (), 3, None)
    assert (job.sampling["min_tokens"], job.sampling["max_tokens"]) == (3, 3)
    assert job.sampling["seed"] is None


@pytest.mark.parametrize("temperature", [1e-6, 0.009])
def test_what_vllm_would_change_is_refused(temperature):
    with pytest.raises(RolloutError, match=r"0\.01"):
        job_of(Request((1,), Sampling(temperature=temperature)), (), 3, None)


# --- arguments ------------------------------------------------------------------------------------


def spec(device="cpu", **more):
    return RolloutSpec("folder", ModelConfig(path="folder"), seed=3, device=device, **more)


def test_arguments_on_a_cpu():
    found = engine_arguments(VLLMConfig(), spec(), "float32", 64)
    assert found["kv_cache_memory_bytes"] == 2**30
    assert "enable_sleep_mode" not in found
    assert found["logprobs_mode"] == "processed_logprobs"
    assert (found["dtype"], found["seed"], found["max_model_len"]) == ("float32", 3, 64)


def test_arguments_on_a_gpu():
    config = VLLMConfig(tensor_parallel=2, engine={"block_size": 64, "max_num_seqs": 5})
    found = engine_arguments(config, spec("cuda"), "bfloat16", 64)
    assert "kv_cache_memory_bytes" not in found
    assert found["enable_sleep_mode"]
    assert found["distributed_executor_backend"] == "mp"
    assert (found["tensor_parallel_size"], found["block_size"], found["max_num_seqs"]) == (2, 64, 5)


def test_room_for_prompt_and_response():
    needs = spec(max_prompt_tokens=10, max_new_tokens=5)
    assert longest(needs, 0, 64) == 15
    assert longest(needs, 0, 12) == 12
    assert longest(needs, 40, 64) == 40
    assert longest(spec(), 0, 64) == 64


@pytest.mark.parametrize("field", ["tensor_parallel", "max_batch", "gpu_memory_utilization"])
def test_ranges(field):
    with pytest.raises(ValueError, match=field):
        VLLMConfig(**{field: 0})


# --- who holds what -------------------------------------------------------------------------------


@pytest.mark.parametrize(("tensor", "first"), [(1, (0, 1, 2, 3)), (2, (0, 2)), (4, (0,))])
def test_the_first_rank_of_a_replica_holds_everything(tensor, first, tmp_path):
    config = VLLMConfig(tensor_parallel=tensor)
    path = str(tiny_model(tmp_path))
    mesh = VLLMRollout.mesh_of(config, 4, None)
    params = {"w": ParamInfo((4, 2), "float32"), "b": ParamInfo((4,), "float32")}
    for rank in range(4):
        engine = VLLMRollout(config, RolloutSpec(path, ModelConfig(path=path), mesh=mesh))
        engine.rank = RankInfo(rank=rank, world=4)
        found = engine.layout(Layout.full(params, 4))
        held = [number for number, pieces in enumerate(found.ranks) if pieces]
        assert tuple(held) == first
        assert all({p.name for p in found.ranks[number]} == set(params) for number in held)
        if rank not in first:
            engine.load(2, {})
            assert engine.version == 2
            assert engine.weights() == {}


# --- names and boxes ------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "kv_heads"), [(1, 2), (2, 2), (4, 2), (4, 1), (2, 4)])
def test_fused_and_cut_layers_come_together_again(ranks, kv_heads):
    heads, width, inner = 4, 3, 8
    wanted = {
        "a.q_proj.weight": torch.randn(heads * width, 5),
        "a.k_proj.weight": torch.randn(kv_heads * width, 5),
        "a.v_proj.weight": torch.randn(kv_heads * width, 5),
        "a.gate_proj.weight": torch.randn(inner, 5),
        "a.up_proj.weight": torch.randn(inner, 5),
    }
    copies = max(ranks // kv_heads, 1)
    mine = max(kv_heads // ranks, 1)
    boxes, starts = [], []
    for rank in range(ranks):
        parts = qkv_parts(["q_proj", "k_proj", "v_proj"], heads // ranks, mine, width, rank, copies)
        parts += merged_parts(["gate_proj", "up_proj"], [inner // ranks] * 2, rank)
        cuts, where = [], {}
        for part in parts:
            name = f"{renamed('a.fused', part.name)}.weight"
            cuts.append((name, wanted[name][part.target : part.target + part.rows]))
            where[name] = [part.target, 0]
        boxes.append(cuts)
        starts.append(where)
    found = assembled(boxes, starts)
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_parts_of_a_fused_layer_follow_each_other():
    parts = qkv_parts(["q", "k", "v"], heads=2, kv_heads=1, head_dim=4, rank=3, kv_copies=2)
    assert [(p.source, p.rows, p.target) for p in parts] == [(0, 8, 24), (8, 4, 4), (12, 4, 4)]
    parts = merged_parts(["gate", "up"], [6, 6], rank=1)
    assert [(p.source, p.rows, p.target) for p in parts] == [(0, 6, 6), (6, 6, 6)]


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
def test_tensors_through_memory(named, tmp_path):
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "turned": torch.randn(4, 6).T,
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
        "learned": torch.nn.Parameter(torch.randn(2)),
    }
    with Parcel(tensors, str(tmp_path) if named else "") as parcel:
        found = dict(opened_parcel(parcel.path, [list(entry) for entry in parcel.entries]))
        assert set(found) == set(tensors)
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)
    assert not list(tmp_path.iterdir())


def test_a_parcel_that_is_gone_is_an_error():
    with Parcel({"a": torch.ones(2)}) as parcel:
        path, entries = parcel.path, parcel.entries
    if os.path.exists(path):
        pytest.skip("another file has that number now")
    with pytest.raises(RolloutError, match="cannot be read"):
        dict(opened_parcel(path, entries))
