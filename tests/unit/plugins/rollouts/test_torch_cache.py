"""The embedded engine's cache at work: what is shared, what has to go, what comes back."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from rlframe.errors import RolloutError
from rlframe.requests import Request
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS as BLOCK
from tests.unit.plugins.rollouts.torch_rig import fixed, torch_engine

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def reference(tmp_path):
    return RolloutReference(tiny_model(tmp_path / "model", max_position_embeddings=512))


@pytest.fixture
def make(tmp_path, reference):
    return partial(torch_engine, tmp_path / "model", reference)


def prompt(length, salt=0):
    return tuple((7 * i + salt) % 30 + 3 for i in range(length))


def run(engine, *requests):
    async def go():
        return await asyncio.gather(*[engine.generate(r) for r in requests])

    return asyncio.run(go())


def check(reference, requests, completions):
    for request, got in zip(requests, completions, strict=True):
        expected = reference.logprobs(request.prompt_ids, got, request.sampling).tolist()
        assert list(got.logprobs) == pytest.approx(expected, abs=1e-4)


def grown(engine, before):
    return {name: value - before[name] for name, value in engine.stats().items()}


# --- sharing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [20, BLOCK, 5 * BLOCK, 5 * BLOCK + 7])
def test_samples_of_a_prompt_are_computed_once_and_share_its_blocks(make, reference, length):
    """Short beginnings are copied, long ones shared; the end of a prompt is each one's own."""
    engine = make()
    requests = [Request(prompt(length), fixed(6, seed=i)) for i in range(8)]
    seen = []
    advance = engine.runner._advance
    engine.runner._advance = lambda: [seen.append(engine.gauges()["kv_used_tokens"]), advance()][1]
    check(reference, requests, run(engine, *requests))
    counted = engine.stats()
    assert (counted["prefill_tokens"], counted["prefix_hit_tokens"]) == (length, 7 * length)
    shared = length // BLOCK if length > 4 * BLOCK else 0
    own = -(-(length + 1) // BLOCK) - shared
    assert seen[0] == (shared + 8 * own) * BLOCK


def test_prompts_with_one_preamble_compute_it_once(make, reference):
    """Also those that come together, and one that goes on where another one only begins."""
    engine = make()
    preamble = prompt(2 * BLOCK)
    texts = [preamble + prompt(n, salt=i) for i, n in enumerate((5, 40, 70))]
    texts.append(texts[2][: 3 * BLOCK] + (9, 9, 9))
    requests = [Request(text, fixed(5, seed=1)) for text in texts]
    check(reference, requests, run(engine, *requests))
    assert engine.stats()["prefix_hit_tokens"] == (2 + 2 + 3) * BLOCK
    total = sum(map(len, texts))
    assert engine.stats()["prefill_tokens"] == total - (2 + 2 + 3) * BLOCK


def test_a_turn_takes_over_the_keys_of_the_turns_before(make, reference):
    engine = make()
    first = Request(prompt(50), fixed(30, seed=3), session_id="s")
    (got,) = run(engine, first)
    before = engine.stats()
    second = Request(first.prompt_ids + got.token_ids + (4, 5, 6), fixed(9), session_id="s")
    check(reference, [second], run(engine, second))
    kept = (50 + 30 - 1) // BLOCK * BLOCK
    assert grown(engine, before)["prefix_hit_tokens"] == kept
    assert grown(engine, before)["prefill_tokens"] == 83 - kept


def test_an_answer_without_a_session_is_not_kept(make):
    engine = make()
    (got,) = run(engine, Request(prompt(BLOCK), fixed(2 * BLOCK)))
    assert (len(got.token_ids), engine.gauges()["kv_idle_tokens"]) == (2 * BLOCK, BLOCK)


def test_new_weights_make_the_cache_useless(make, reference):
    engine = make()
    request = Request(prompt(70), fixed(9), session_id="s")
    run(engine, request)
    assert engine.gauges()["kv_idle_tokens"] == 2 * BLOCK
    reference.change(seed=5)
    engine.load(1, reference.tensors())
    assert engine.gauges()["kv_idle_tokens"] == 0
    check(reference, [request], run(engine, request))
    assert engine.stats()["prefix_hit_tokens"] == 0


def test_what_ran_while_weights_changed_is_given_to_nobody(make, reference):
    """Neither its prompt to a sibling, nor its answer to the next turn."""
    engine = make()
    first = Request(prompt(40), fixed(60), session_id="s")

    async def go():
        task = asyncio.create_task(engine.generate(first))
        while engine.gauges()["running"] == 0:
            await asyncio.sleep(0)
        reference.change(seed=5)
        engine.load(1, reference.tensors())
        return await task

    got = asyncio.run(go())
    assert set(got.versions) == {0, 1}
    later = [
        Request(first.prompt_ids, fixed(5)),
        Request(first.prompt_ids + got.token_ids + (8,), fixed(5), session_id="s"),
    ]
    check(reference, later, run(engine, *later))
    assert engine.stats()["prefix_hit_tokens"] == BLOCK  # the first of these two gave the other


# --- the bound ----------------------------------------------------------------------------------


def test_the_cache_never_holds_more_than_its_bound(make, reference):
    """Eleven answers that need two blocks each share five; some wait, some are sent back."""
    engine = make(max_kv_tokens=5 * BLOCK + 3)
    requests = [Request(prompt(9, salt=n), fixed(40, seed=n)) for n in range(11)]
    check(reference, requests, run(engine, *requests))
    gauges = engine.gauges()
    assert engine.stats()["preemptions"] > 0
    assert gauges["kv_total_tokens"] == 5 * BLOCK
    assert engine.runner._cache.blocks <= 5
    assert gauges["kv_used_tokens"] == gauges["running"] == gauges["waiting"] == 0


def test_a_request_that_cannot_fit_alone_is_an_error(make):
    engine = make(max_kv_tokens=2 * BLOCK)
    with pytest.raises(RolloutError, match=r"max_kv_tokens=64 \(in blocks of 32\): raise it"):
        run(engine, Request(prompt(40), fixed(30)))
    assert len(run(engine, Request(prompt(40), fixed(24)))[0].token_ids) == 24


def test_a_session_gives_way_to_what_runs(make, reference):
    engine = make(max_kv_tokens=4 * BLOCK)
    run(engine, Request(prompt(70), fixed(9), session_id="old"))
    assert engine.gauges()["kv_idle_tokens"] == 2 * BLOCK
    request = Request(prompt(90, salt=1), fixed(20))
    check(reference, [request], run(engine, request))
    assert engine.gauges()["kv_idle_tokens"] <= 2 * BLOCK


def test_alone_nothing_is_sent_back_and_bits_do_not_depend_on_company(make):
    """Where the cache is short as well, and where an equal prompt or its beginning is there."""
    roomy = make(batch_invariant=True)
    short = make(batch_invariant=True, max_kv_tokens=8 * BLOCK)
    requests = [
        Request(prompt(70)[: 70 - n % 3], fixed(20, seed=n), session_id=str(n)) for n in range(6)
    ]
    single = [run(roomy, request)[0] for request in requests]
    assert run(short, *requests) == single
    assert run(short, *reversed(requests)) == single[::-1]
    assert short.stats()["preemptions"] == 0


# --- host memory --------------------------------------------------------------------------------


def test_a_session_goes_to_the_host_and_comes_back(make, reference):
    engine = make(max_kv_tokens=4 * BLOCK, host_kv_tokens=3 * BLOCK)
    first = Request(prompt(70), fixed(9), session_id="s")
    (got,) = run(engine, first)
    other = Request(prompt(100, salt=1), fixed(20))
    check(reference, [other], run(engine, other))
    assert engine.gauges()["kv_host_tokens"] == 2 * BLOCK
    assert engine.runner._cache.slots >= 2
    before = engine.stats()
    second = Request(first.prompt_ids + got.token_ids, fixed(9), session_id="s")
    check(reference, [second], run(engine, second))
    assert grown(engine, before)["prefix_hit_tokens"] == 2 * BLOCK


@pytest.mark.parametrize("host", [0, 64])
def test_sleep_moves_what_runs_to_the_host(make, reference, host):
    """Awake, it goes on where it was; without room there, it is computed again."""
    engine = make(host_kv_tokens=host * BLOCK)
    requests = [Request(prompt(40, salt=n), fixed(40, seed=n)) for n in range(3)]

    async def go():
        tasks = [asyncio.create_task(engine.generate(r)) for r in requests]
        while engine.stats()["decode_s"] == 0:
            await asyncio.sleep(0)
        engine.sleep(1)
        asleep = engine.gauges(), engine.runner._cache.blocks
        engine.wake()
        return asleep, await asyncio.gather(*tasks)

    (asleep, blocks), done = asyncio.run(go())
    assert blocks == asleep["kv_used_tokens"] == asleep["kv_idle_tokens"] == 0
    assert asleep["kv_host_tokens"] == (3 * BLOCK if host else 0)
    check(reference, requests, done)
    assert engine.stats()["prefix_hit_tokens"] == (3 * BLOCK if host else 0)


def test_the_host_forgets_with_the_weights(make, reference):
    engine = make(host_kv_tokens=8 * BLOCK)
    request = Request(prompt(70), fixed(9), session_id="s")
    run(engine, request)
    engine.sleep(1)
    assert engine.gauges()["kv_host_tokens"] == 2 * BLOCK
    reference.change(seed=5)
    engine.load(1, reference.tensors())
    engine.wake()
    assert engine.gauges()["kv_host_tokens"] == 0
    check(reference, [request], run(engine, request))
    engine.sleep(2)
    assert engine.runner._cache.slots == 0
