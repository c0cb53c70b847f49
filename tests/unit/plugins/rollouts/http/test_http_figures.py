"""What servers show at /metrics: parsed, never falling, and left out where they show nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.http.figures import Metrics, Shown, samples
from tests.unit.plugins.rollouts.sglang_rig import ended, made, path, serve

__all__ = ["ended", "path"]

TEXT = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"quoted\\" one, {x}"} 2.0
vllm:num_requests_running{engine="1",model_name="b"} 3 1700000000000
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="100"} 1.0
vllm:time_bucket{le="+Inf"} +Inf
vllm:odd NaN
this is no sample
"""


def test_series_are_added_and_what_is_no_number_is_passed_over() -> None:
    found = samples(TEXT)
    assert found["vllm:num_requests_running"] == 5
    assert found["vllm:cache_config_info/num_gpu_blocks"] == 100
    assert not {"vllm:odd", "vllm:time_bucket", "vllm:cache_config_info/cache_dtype"} & set(found)


def test_counters_go_on_where_a_server_was_started_again() -> None:
    shown = Shown(Metrics({"drawn_total": "drawn"}, {"busy": "running"}))
    for text in ("drawn_total 5\nbusy 2", "drawn_total 9\nbusy 1", "drawn_total 3", ""):
        shown.take(text)
    assert shown.counters == {"drawn": 12}
    assert shown.gauges == {}


def test_an_engine_says_what_its_servers_show(path: Path) -> None:
    """The first of several workers alone; a server that is away, or shows nothing, adds nothing."""
    servers = [serve(path), serve(path), serve(path)]
    for server in servers[:2]:
        server.metrics = {
            "sglang:num_running_reqs": 3,
            "sglang:num_queue_reqs": 1,
            "sglang:num_used_tokens": 40,
            "sglang:max_total_num_tokens": 100,
            "sglang:gen_throughput": 7.5,
            "sglang:prompt_tokens_total": 30,
            "sglang:cached_tokens_total": 10,
            "sglang:generation_tokens_total": 50,
        }
    engine = made(path, *servers)
    engine.load(1, RolloutReference(path).tensors())
    now, counted = engine.gauges(), engine.stats()
    assert (now["running"], now["waiting"], now["generated_tokens_per_s"]) == (6, 2, 15)
    assert (now["kv_used_tokens"], now["kv_total_tokens"]) == (80, 200)
    assert (counted["prefix_hit_tokens"], counted["prefill_tokens"]) == (20, 40)
    assert counted["generated_tokens"] == 100
    servers[1].die()
    assert engine.gauges()["running"] == 3
    assert engine.stats()["generated_tokens"] == 100
    engine.rank = RankInfo(rank=1, world=2, local_rank=1)
    servers[0].metrics["sglang:num_running_reqs"] = 9
    assert engine.gauges()["running"] == pytest.approx(3)
    engine.close()
