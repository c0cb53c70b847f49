"""Generation over several ranks: equal to one rank, in lockstep, and broken with a reason."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from rlframe.config import ModelConfig
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request, Sampling
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_kit import PROMPTS, SAMPLINGS
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from tests.unit.plugins.rollouts.replica_rig import Followers, replica

pytestmark = [pytest.mark.dist, pytest.mark.timeout(120)]


@pytest.fixture(scope="module", params=[2, 4])
def followers(request):
    made = Followers(request.param)
    yield made
    made.end()


def run(engine, *requests):
    async def go():
        return await asyncio.gather(*[engine.generate(r) for r in requests])

    return asyncio.run(go())


MODELS = {
    "qwen2": {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2},
    "llama": {
        "kind": "llama",
        "hidden_size": 48,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_equal_seeds_give_the_tokens_of_one_rank(name, followers, tmp_path):
    """Odd vocabulary, tied and not, biases, heads that are repeated."""
    path = str(tiny_model(tmp_path / "m", **MODELS[name]))
    spec = RolloutSpec(path, ModelConfig(path=path))
    tensors = RolloutReference(tmp_path / "m").tensors()
    requests = [
        Request(prompt, sampling, group_id=i, episode_id=10 * i + j)
        for i, prompt in enumerate(PROMPTS)
        for j, sampling in enumerate(SAMPLINGS)
    ]
    alone = TorchRollout(TorchRollout.Config(max_batch=7), spec)
    alone.load(1, tensors)
    config = TorchRollout.Config(max_batch=7, tensor_parallel=1 + len(followers.pipes))
    many = replica(followers, config, spec)
    many.load(1, tensors)
    for one, other in zip(run(alone, *requests), run(many, *requests), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    many.close()


LONG = Sampling(max_new_tokens=50, min_new_tokens=50)


@pytest.fixture(scope="module")
def pair():
    made = Followers(2)
    yield made
    made.end()


def started(followers, tmp_path, **options):
    path = str(tiny_model(tmp_path / "m"))
    config = TorchRollout.Config(tensor_parallel=2, step_timeout_s=20.0, **options)
    engine = replica(followers, config, RolloutSpec(path, ModelConfig(path=path)))
    engine.load(1, RolloutReference(tmp_path / "m").tensors())
    return engine


def test_a_follower_takes_no_requests_and_shows_its_version(pair, tmp_path):
    engine = started(pair, tmp_path)
    pair.send("ask", _refused)
    (found,) = pair.answers()
    assert found == (1, "rank 1 follows rank 0, which takes requests")
    engine.close()


def _refused(engine):
    try:
        asyncio.run(engine.generate(Request((3,))))
    except RolloutError as error:
        return engine.version, str(error)
    return None


def test_an_idle_follower_does_not_spin(pair, tmp_path):
    """In a second of wall time it takes a tenth of processor time at most, and answers after."""
    engine = started(pair, tmp_path)
    run(engine, Request((3, 4), LONG))
    before = cpu_seconds(pair.processes[0].pid)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        time.sleep(0.1)
    assert cpu_seconds(pair.processes[0].pid) - before < 0.1
    assert len(run(engine, Request((3, 4), LONG))[0].token_ids) == 50
    engine.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_shards_show_what_every_rank_computes_with(pair, tmp_path):
    engine = started(pair, tmp_path)
    pair.send("ask", _weights)
    (theirs,) = pair.answers()
    tensors = RolloutReference(tmp_path / "m").tensors()
    ours = {name: t.numpy() for name, t in engine.weights().items()}
    for rank, parts in enumerate(engine.parts(tensors)):
        shown = (ours, theirs)[rank]
        assert shown.keys() == parts.keys()
        assert all(np.array_equal(shown[name], parts[name]) for name in parts)
    engine.close()


def _weights(engine):
    return {name: tensor.numpy() for name, tensor in engine.weights().items()}


def test_weights_that_reach_the_leader_only_are_an_error_in_time(tmp_path):
    pair = Followers(2)
    path = str(tiny_model(tmp_path / "m"))
    config = TorchRollout.Config(tensor_parallel=2, step_timeout_s=1.0)
    engine = replica(pair, config, RolloutSpec(path, ModelConfig(path=path)))
    tensors = RolloutReference(tmp_path / "m").tensors()
    engine.load(1, tensors)
    TorchRollout.load(engine, 2, engine.weights())
    with pytest.raises(RolloutError, match="rank 1: RolloutError: weight version 2 did not reach"):
        run(engine, Request((3, 4), LONG))
    engine.close()
    pair.end()


def _break(engine):
    def broken(*args):
        raise LookupError("no memory")

    engine._follower._decoder.decode = broken


@pytest.mark.parametrize("fault", ["exception", "death"])
def test_a_rank_that_fails_in_a_step_breaks_the_replica_with_its_reason(fault, tmp_path):
    """Every open request ends with it, at once, and so does every later one."""
    pair = Followers(2)
    engine = started(pair, tmp_path)
    run(engine, Request((3, 4), LONG))
    if fault == "exception":
        pair.send("patch", _break)
        assert pair.answers() == [None]
    else:
        pair.processes[0].kill()

    async def go():
        tasks = [engine.generate(Request((5, 6), LONG)) for _ in range(3)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    wanted = "rank 1: LookupError: no memory" if fault == "exception" else "([Cc]onnection|peer)"
    for error in (*asyncio.run(go()), *asyncio.run(go())):
        assert isinstance(error, RolloutError)
        assert re.search(rf"replica of ranks \(0, 1\) is broken: .*{wanted}", str(error)), error
    TorchRollout.close(engine)
    pair.end()


def test_a_leader_that_fails_frees_its_followers(pair, tmp_path, monkeypatch):
    """What the others wait for ends at once; their next load says why."""
    engine = started(pair, tmp_path)

    def broken(*args):
        raise LookupError("no logits")

    monkeypatch.setattr(type(engine._decoder), "_gathered", broken)
    with pytest.raises(RolloutError, match="no logits"):
        run(engine, Request((3, 4), LONG))
    pair.send("ask", _failure)
    assert "no logits" in pair.answers()[0]
    TorchRollout.close(engine)
    pair.send("close")
    assert pair.answers() == [None]


def _failure(engine):
    engine._follower.close()
    return engine._follower.failure
