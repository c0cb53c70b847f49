"""What the embedded engine does beyond the conformance kit: batching, sharing, faults."""

from __future__ import annotations

import asyncio
import gc
from functools import partial

import pytest
import torch

from rlframe.config import ModelConfig
from rlframe.errors import ModelError, RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from tests.unit.plugins.rollouts.torch_rig import fixed, torch_engine

PROMPT = (7, 8, 9)


@pytest.fixture
def reference(tmp_path):
    return RolloutReference(tiny_model(tmp_path / "model", max_position_embeddings=128))


@pytest.fixture
def make(tmp_path, reference):
    return partial(torch_engine, tmp_path / "model", reference)


def run(engine, *requests):
    async def go():
        return await asyncio.gather(*[engine.generate(r) for r in requests])

    return asyncio.run(go())


@pytest.fixture
def calls(monkeypatch):
    """Prompts of each prefill, and rows of each decode step."""
    from rlframe_plugins.rollouts.torch.decoder import Decoder

    seen = {"prefill": [], "decode": []}
    prefill, decode = Decoder.prefill, Decoder.decode

    def counted_prefill(self, texts, *rest):
        seen["prefill"].append([tuple(t) for t in texts])
        return prefill(self, texts, *rest)

    def counted_decode(self, tokens, *rest):
        seen["decode"].append(len(tokens))
        return decode(self, tokens, *rest)

    monkeypatch.setattr(Decoder, "prefill", counted_prefill)
    monkeypatch.setattr(Decoder, "decode", counted_decode)
    return seen


# --- batching ---------------------------------------------------------------------------------


def test_a_prompt_is_prefilled_once_for_its_group(make, calls):
    run(make(), *[Request(p, fixed(3)) for p in (PROMPT, (1, 4, 5)) for _ in range(8)])
    assert sorted(sum(calls["prefill"], [])) == sorted([PROMPT, (1, 4, 5)])
    assert calls["decode"] == [16, 16]


def test_a_sibling_that_enters_later_takes_the_keys_of_a_running_one(make, calls, reference):
    engine = make(max_batch=2)
    prompts, lengths = (PROMPT, (4, 30, 6, 11), PROMPT, PROMPT), (20, 3, 5, 4)
    requests = [Request(p, fixed(n, seed=n)) for p, n in zip(prompts, lengths, strict=True)]
    for request, got in zip(requests, run(engine, *requests), strict=True):
        expected = reference.logprobs(request.prompt_ids, got, request.sampling).tolist()
        assert list(got.logprobs) == pytest.approx(expected, abs=1e-4)
    assert sorted(sum(calls["prefill"], [])) == sorted(prompts[:2])


def test_keys_of_older_weights_are_never_given_to_a_sibling(make, reference):
    engine = make(max_batch=2)

    fresh = Request(PROMPT, fixed(6))

    async def late():
        long = asyncio.create_task(engine.generate(Request(PROMPT, fixed(40))))
        while engine.stats()["busy_s"] == busy:
            await asyncio.sleep(0)
        reference.change(seed=6)
        engine.load(2, reference.tensors())
        got = await engine.generate(fresh)
        assert not long.done()
        await long
        return got

    busy = engine.stats()["busy_s"]
    got = asyncio.run(late())
    assert set(got.versions) == {2}
    expected = reference.logprobs(PROMPT, got, fresh.sampling).tolist()
    assert list(got.logprobs) == pytest.approx(expected, abs=1e-4)


def test_finished_ones_leave_and_waiting_ones_enter(make, calls):
    lengths = (12, 2, 2, 2, 2, 2)
    out = run(make(max_batch=2), *[Request((n,), fixed(n)) for n in lengths])
    assert [len(got.token_ids) for got in out] == list(lengths)
    assert max(calls["decode"]) == 2
    assert len(calls["decode"]) == 11


def test_a_response_ends_at_the_last_position(make):
    (got,) = run(make(), Request((5,) * 120, fixed(50)))
    assert (len(got.token_ids), got.finish_reason) == (8, "length")


def test_prompts_of_like_length_share_a_prefill_and_others_do_not(make, calls):
    run(make(), *[Request((n % 30 + 3,) * n, fixed(1)) for n in (1, 40, 38, 2, 39)])
    sizes = [sorted(map(len, prompts)) for prompts in calls["prefill"]]
    assert [38, 39, 40] in sizes
    assert sorted(sum(sizes, [])) == [1, 2, 38, 39, 40]


# --- weights and memory ---------------------------------------------------------------------------


def test_sleep_gives_back_cache_then_weights(make):
    engine = make()
    run(engine, Request(PROMPT, fixed(3)))

    def held():
        gc.collect()
        tensors = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.dim() == 4]
        return sum(t.numel() for t in tensors)

    before = held()
    engine.sleep(1)
    arch = engine._arch
    block = 2 * arch.layers * arch.kv_heads * arch.head_dim * BLOCK_TOKENS
    assert before - held() >= block
    engine.wake()
    assert len(run(engine, Request(PROMPT, fixed(3)))[0].token_ids) == 3


def test_sleep_in_the_middle_only_delays(make, reference):
    engine = make()
    requests = [Request(p, fixed(20, seed=1)) for p in (PROMPT, (4,), PROMPT)]

    async def go():
        tasks = [asyncio.create_task(engine.generate(r)) for r in requests]
        for _ in range(9):
            await asyncio.sleep(0)
        engine.sleep(1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        engine.wake()
        return await asyncio.gather(*tasks)

    for request, got in zip(requests, asyncio.run(go()), strict=True):
        assert len(got.token_ids) == 20
        expected = reference.logprobs(request.prompt_ids, got, request.sampling).tolist()
        assert list(got.logprobs) == pytest.approx(expected, abs=1e-4)


def test_abort_returns_what_was_drawn(make):
    engine = make()

    async def go():
        task = asyncio.create_task(engine.generate(Request(PROMPT, fixed(50), request_id="a")))
        for _ in range(10):
            await asyncio.sleep(0)
        engine.abort("a")
        return await task

    got = asyncio.run(go())
    assert got.finish_reason == "abort"
    assert 0 < len(got.token_ids) == len(got.logprobs) == len(got.versions) < 15


def test_a_cancelled_caller_frees_its_row(make, calls):
    engine = make(max_batch=1)

    async def go():
        gone = asyncio.create_task(engine.generate(Request(PROMPT, fixed(60))))
        for _ in range(5):
            await asyncio.sleep(0)
        gone.cancel()
        return await engine.generate(Request((4,), fixed(3)))

    assert len(asyncio.run(go()).token_ids) == 3
    assert len(calls["decode"]) < 10


# --- faults ---------------------------------------------------------------------------------------


def test_an_error_in_a_step_reaches_every_request_and_the_next_ones_work(make, monkeypatch):
    engine = make()

    async def go():
        tasks = [engine.generate(Request(PROMPT, fixed(5))) for _ in range(3)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "_advance", lambda: 1 / 0)
        errors = asyncio.run(go())
    assert all(isinstance(e, RolloutError) and "ZeroDivisionError" in str(e) for e in errors)
    assert len({id(e) for e in errors}) == 3
    assert [len(got.token_ids) for got in asyncio.run(go())] == [5, 5, 5]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_weights_are_an_error_and_leave_nothing_behind(make, reference, temperature):
    engine = make()
    broken = {n: t.clone() for n, t in reference.tensors().items()}
    broken["model.layers.0.mlp.up_proj.weight"].fill_(float("nan"))
    engine.load(8, broken)
    with pytest.raises(RolloutError, match="version 8 are not finite"):
        run(engine, Request(PROMPT, fixed(5, temperature=temperature)))
    engine.load(9, reference.tensors())
    assert len(run(engine, Request((4,), fixed(5)))[0].token_ids) == 5


def test_a_cancelled_stepping_task_is_an_error_not_a_hang(make):
    engine = make()

    async def go():
        task = asyncio.create_task(engine.generate(Request(PROMPT, fixed(60))))
        await asyncio.sleep(0)
        engine._task.cancel()
        await asyncio.wait_for(task, 60)

    with pytest.raises(RolloutError, match="cancelled"):
        asyncio.run(go())
    assert len(run(engine, Request(PROMPT, fixed(3)))[0].token_ids) == 3


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_loop_that_died_with_open_requests_leaves_none(make):
    engine = make()
    loop = asyncio.new_event_loop()
    coroutine = engine.generate(Request(PROMPT, fixed(60)))
    task = loop.create_task(coroutine)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert len(run(engine, Request(PROMPT, fixed(3)))[0].token_ids) == 3
    assert not engine.runner.has_work
    task._log_destroy_pending = False
    engine._task = None
    gc.collect()


def test_sliding_window_is_refused_before_a_run_when_lengths_are_known(tmp_path):
    from transformers import MistralConfig

    MistralConfig(sliding_window=16).save_pretrained(tmp_path)
    model = ModelConfig(path=str(tmp_path))
    with pytest.raises(ModelError, match="sliding window"):
        TorchRollout(
            TorchRollout.Config(),
            RolloutSpec(str(tmp_path), model, max_prompt_tokens=10, max_new_tokens=10),
        )


@pytest.mark.parametrize(
    ("name", "value"), [("max_batch", 0), ("max_kv_tokens", 31), ("host_kv_tokens", -1)]
)
def test_bounds_are_checked(name, value):
    with pytest.raises(ValueError, match=name):
        TorchRollout.Config(**{name: value})
