"""The rollout vllm passes the kit, on a CPU; ``make test-vllm`` runs it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="rollout 'vllm' needs the package vllm: make test-vllm")

from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutEngine
from rlframe.interfaces.strategy import RankInfo
from rlframe.requests import Request, Sampling
from rlframe.testing.rollout_kit import RolloutKit, run
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.vllm.engine import VLLMRollout
from tests.unit.plugins.rollouts.vllm_rig import BLOCK, POSITIONS, Shared

pytestmark = [pytest.mark.slow, pytest.mark.dist, pytest.mark.timeout(600)]

LONG = tuple(3 + n % 30 for n in range(BLOCK + 8))
"""A prompt that fills a block of the cache."""
GREEDY = Sampling(temperature=0, max_new_tokens=12)
LASTING = Sampling(max_new_tokens=POSITIONS - 64, min_new_tokens=POSITIONS - 64)
"""Runs until a test ends it: nothing here takes as long as so many tokens."""
WAIT_S = 120.0


class OverVLLM(RolloutKit):
    """One start for a class: each test has an engine without weights over the same processes."""

    rollout = "vllm"
    positions, lasting = POSITIONS, POSITIONS // 2

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls, tmp_path_factory):
        made = Shared(tmp_path_factory.mktemp("vllm"), cls.kind)
        yield made
        made.close()

    @pytest.fixture
    def path(self, shared) -> Path:
        self.made = shared
        return shared.path

    def make(self, target: type[RolloutEngine], path: Path, **options: Any) -> RolloutEngine:
        return self.made.engine(**{**self.options, **options})


class TestTied(OverVLLM):
    """A tied head, biases, one key-value head."""

    kind = "qwen2"

    def test_it_shows_what_it_computes_with(
        self, engine: VLLMRollout, reference: RolloutReference
    ) -> None:
        """Bit by bit, out of fused layers and packed weights, before and after an update."""
        for version in (4, 5):
            shown, wanted = engine.weights(), reference.tensors()
            assert set(shown) == set(wanted)
            assert all(torch.equal(shown[name], wanted[name]) for name in wanted)
            reference.change(seed=version)
            engine.load(version, reference.tensors())

    def test_prompts_are_computed_once_a_version(
        self, engine: VLLMRollout, reference: RolloutReference
    ) -> None:
        """A block of the first request serves the second; none of an older version serves."""
        request = Request(LONG, GREEDY)
        before = engine.stats()["prefix_hits"]
        for number in range(2):
            (got,) = run(engine, request)
            self.check(reference, request, got, version=3)
            assert engine.stats()["prefix_hits"] - before == BLOCK * number
        reference.change(seed=7)
        engine.load(4, reference.tensors())
        (got,) = run(engine, request)
        self.check(reference, request, got, version=4)
        assert engine.stats()["prefix_hits"] - before == BLOCK

    def test_no_old_prompt_serves_while_a_request_holds_it(
        self, engine: VLLMRollout, reference: RolloutReference
    ) -> None:
        """Weights change under a running request; one with its prompt is computed anew."""

        async def go() -> Any:
            asked = Request(LONG, LASTING, request_id="first")
            first = asyncio.create_task(engine.generate(asked))
            await drawn(engine, 2, first)
            reference.change(seed=4)
            engine.load(4, reference.tensors())
            second = await engine.generate(Request(LONG, GREEDY))
            await drawn(engine, 2, first)
            engine.abort("first")
            return await first, second

        first, second = asyncio.run(go())
        assert list(first.versions) == sorted(first.versions)
        assert set(first.versions) == {3, 4}
        assert first.finish_reason == "abort"
        self.check(reference, Request(LONG, GREEDY), second, version=4)

    def test_a_partial_is_continued(self, engine: VLLMRollout, reference: RolloutReference) -> None:
        """What an abort left is a prompt for the rest, with exact log-probabilities."""

        async def go() -> Any:
            first = asyncio.create_task(engine.generate(Request(LONG, LASTING)))
            await drawn(engine, 3, first)
            engine.pause("abort")
            partial = await first
            engine.resume()
            rest = Request((*LONG, *partial.token_ids), Sampling(max_new_tokens=2))
            return partial, rest, await engine.generate(rest)

        partial, rest, got = asyncio.run(go())
        assert partial.finish_reason == "abort"
        assert 1 <= len(partial.token_ids) < LASTING.max_new_tokens
        self.check(reference, Request(LONG, LASTING), partial, version=3)
        self.check(reference, rest, got, version=3)

    def test_figures(self, engine: VLLMRollout) -> None:
        """Of running requests, and of nothing given back on a CPU."""

        async def go() -> dict[str, float]:
            asked = [Request(LONG, LASTING, request_id=one) for one in "abc"]
            work = [asyncio.create_task(engine.generate(one)) for one in asked]
            await until(lambda: engine.gauges()["running"] == 3, "three requests run", *work)
            seen = engine.gauges()
            engine.pause("abort")
            await asyncio.gather(*work)
            engine.resume()
            return seen

        seen = asyncio.run(go())
        assert engine.gauges()["running"] == engine.gauges()["kv_used_tokens"] == 0
        assert 0 < seen["kv_used_tokens"] < seen["kv_total_tokens"]
        assert seen["generated_tokens_per_s"] > 0
        before = engine.stats()
        engine.sleep(2)
        assert engine.gauges()["freed_bytes"] == 0
        assert all(value >= before[name] for name, value in engine.stats().items())

    def test_too_cold_is_refused(self, engine: VLLMRollout) -> None:
        """vLLM would raise the temperature."""
        with pytest.raises(RolloutError, match=r"0\.01"):
            run(engine, Request((5,), Sampling(temperature=0.001)))

    def test_a_missing_weight_is_an_error(
        self, engine: VLLMRollout, reference: RolloutReference
    ) -> None:
        """Nothing is served with what an older version left in its place."""
        tensors = reference.tensors()
        del tensors["model.layers.1.mlp.down_proj.weight"]
        with pytest.raises(RolloutError, match="down_proj"):
            engine.load(4, tensors)
        assert engine.version == -1
        engine.load(5, reference.tensors())
        assert run(engine, Request((5,), GREEDY))[0].token_ids


class TestUntied(OverVLLM):
    """A head of its own, no biases."""

    kind = "llama"

    def test_it_shows_what_it_computes_with(
        self, engine: VLLMRollout, reference: RolloutReference
    ) -> None:
        """The head too."""
        shown = engine.weights()
        assert all(torch.equal(shown[name], one) for name, one in reference.tensors().items())


class TestTwoWorkers:
    """One model over two of vLLM's workers, until one of them is killed."""

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls, tmp_path_factory):
        made = Shared(tmp_path_factory.mktemp("vllm"), "qwen2", tensor_parallel=2)
        yield made
        made.close()

    def test_log_probabilities_and_weights(self, shared: Shared) -> None:
        """One key-value head is on both; vocabulary and features divide unevenly."""
        engine, reference = first_of_two(shared), RolloutReference(shared.path)
        for version in (1, 2):
            engine.load(version, reference.tensors())
            shown = engine.weights()
            assert all(torch.equal(shown[name], one) for name, one in reference.tensors().items())
            request = Request((5, 9, 4), Sampling(temperature=0.3, max_new_tokens=12))
            (got,) = run(engine, request)
            found = reference.logprobs(request.prompt_ids, got, request.sampling).tolist()
            assert list(got.logprobs) == pytest.approx(found, abs=1e-4)
            reference.change(seed=version)

    def test_a_killed_worker_is_an_error_and_nothing_is_left(self, shared: Shared) -> None:
        """Requests that run get it, and those that come; every other process has ended."""
        engine, reference = first_of_two(shared), RolloutReference(shared.path)
        engine.load(1, reference.tensors())
        core = next(pid for pid, name in group_of(shared.link.pid) if "EngineCor" in name)

        async def go() -> None:
            work = asyncio.create_task(engine.generate(Request((5,), LASTING)))
            await drawn(engine, 2, work)
            os.kill(core, signal.SIGKILL)
            with pytest.raises(RolloutError, match="vLLM"):
                await work
            with pytest.raises(RolloutError, match="vLLM"):
                await engine.generate(Request((5,), GREEDY))

        asyncio.run(go())
        shared.close()
        assert not group_of(shared.link.pid)


async def until(seen: Callable[[], bool], what: str, *work: asyncio.Task[Any]) -> None:
    """Wait for ``what`` while all of ``work`` runs; a failure that names it otherwise."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not seen():
                over = [one.exception() or one.result() for one in work if one.done()]
                assert not over, f"a request ended before {what}: {over[0]}"
                await asyncio.sleep(0)
    except TimeoutError:
        pytest.fail(f"it is not so within {WAIT_S:g} s that {what}")


async def drawn(engine: VLLMRollout, count: int, *work: asyncio.Task[Any]) -> None:
    """Wait until so many more tokens were drawn."""
    wanted = engine.stats()["generated_tokens"] + count
    what = f"{count} more tokens are drawn"
    await until(lambda: engine.stats()["generated_tokens"] >= wanted, what, *work)


def first_of_two(shared: Shared) -> VLLMRollout:
    """The rank that holds the engine of a replica."""
    engine = shared.engine()
    engine.rank = RankInfo(rank=0, world=2)
    return engine


def group_of(leader: int) -> list[tuple[int, str]]:
    """Ids and names of a process group's processes that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            state, _, group, *_ = rest.split()
            if int(group) == leader and state not in ("Z", "X"):
                found.append((int(entry.name), name))
    return found
