"""The rollout vllm passes the kit, on a CPU; ``make test-vllm`` runs it."""

from __future__ import annotations

import asyncio
import os
import signal
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
from tests.unit.plugins.rollouts.vllm_rig import BLOCK, Shared

pytestmark = [pytest.mark.slow, pytest.mark.dist, pytest.mark.timeout(600)]

LONG = tuple(3 + n % 30 for n in range(BLOCK + 8))
"""A prompt that fills a block of the cache."""
TRIES = 20
"""How often a test may find that a request had ended before it could do something to it."""
GREEDY = Sampling(temperature=0, max_new_tokens=12)


class OverVLLM(RolloutKit):
    """One start for a class: each test has an engine without weights over the same processes."""

    rollout = "vllm"

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
        """Weights change under a running request; one with its prompt is computed anew.

        Tried again where the first had ended before its weights changed.
        """
        long = Request(LONG, Sampling(max_new_tokens=20, min_new_tokens=20))

        async def go(version: int) -> Any:
            drawn = engine.stats()["generated_tokens"]
            first = asyncio.create_task(engine.generate(long))
            while engine.stats()["generated_tokens"] < drawn + 2:
                await asyncio.sleep(0)
            reference.change(seed=version)
            engine.load(version, reference.tensors())
            second = await engine.generate(Request(LONG, GREEDY))
            return await first, second

        for version in range(4, 4 + TRIES):
            first, second = asyncio.run(go(version))
            assert list(first.versions) == sorted(first.versions)
            self.check(reference, Request(LONG, GREEDY), second, version=version)
            if set(first.versions) == {version - 1, version}:
                return
        pytest.fail(f"no weights changed under a request in {TRIES} tries")

    def test_a_partial_is_continued(self, engine: VLLMRollout, reference: RolloutReference) -> None:
        """What an abort left is a prompt for the rest, with exact log-probabilities.

        Tried again where there was nothing left to abort.
        """

        async def go() -> Any:
            drawn = engine.stats()["generated_tokens"]
            sampling = Sampling(max_new_tokens=20, min_new_tokens=20)
            first = asyncio.create_task(engine.generate(Request(LONG, sampling)))
            while engine.stats()["generated_tokens"] < drawn + 3:
                await asyncio.sleep(0)
            engine.pause("abort")
            partial = await first
            engine.resume()
            rest = Request((*LONG, *partial.token_ids), Sampling(max_new_tokens=2))
            return partial, rest, await engine.generate(rest)

        for _ in range(TRIES):
            partial, rest, got = asyncio.run(go())
            self.check(reference, rest, got, version=3)
            if partial.finish_reason == "abort":
                assert 1 <= len(partial.token_ids) <= 20
                return
        pytest.fail(f"nothing was aborted in {TRIES} tries")

    def test_figures(self, engine: VLLMRollout) -> None:
        """Of running requests, and of nothing given back on a CPU."""

        async def go() -> dict[str, float]:
            work = [asyncio.create_task(engine.generate(Request(LONG, GREEDY))) for _ in "abc"]
            while engine.gauges()["running"] < 3:
                await asyncio.sleep(0)
            seen = engine.gauges()
            await asyncio.gather(*work)
            return seen

        seen = asyncio.run(go())
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
            drawn = engine.stats()["generated_tokens"]
            sampling = Sampling(max_new_tokens=50, min_new_tokens=50)
            work = asyncio.create_task(engine.generate(Request((5,), sampling)))
            while engine.stats()["generated_tokens"] < drawn + 2:
                await asyncio.sleep(0)
            os.kill(core, signal.SIGKILL)
            with pytest.raises(RolloutError, match="vLLM"):
                await work
            with pytest.raises(RolloutError, match="vLLM"):
                await engine.generate(Request((5,), sampling))

        asyncio.run(go())
        shared.close()
        assert not group_of(shared.link.pid)


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
