"""SGLang's in-process engine, over a fake of it that draws with a real small model."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlframe.config import ModelConfig
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Completion, Request
from rlframe.testing import fake_sglang_engine
from rlframe.testing.fake_sglang_engine import install
from rlframe.testing.rollout_kit import PROMPTS, SAMPLINGS, RolloutKit
from rlframe.testing.rollout_reference import RolloutReference
from rlframe.testing.sglang_scheduler import FakeScheduler
from rlframe_plugins.rollouts.sglang.api import loaded
from rlframe_plugins.rollouts.sglang.inside import SGLangEngine, engine_arguments
from tests.unit.plugins.rollouts.sglang_rig import LASTING, LONG, Hosted, agrees, drawing, path, run


class TestHosted(RolloutKit):
    """Each engine has a host of its own."""

    rollout = "tests.unit.plugins.rollouts.sglang_rig:Hosted"
    lasting = LASTING


class Sleeper(Hosted):
    """One that gives memory back, as on a GPU."""

    gives_back = True
    lasting = LONG.max_new_tokens


@pytest.fixture
def made(path: Path) -> Iterator[Hosted]:
    engine = Sleeper(Hosted.Config(), RolloutSpec(str(path), ModelConfig(path=str(path))))
    engine.load(1, RolloutReference(path).tensors())
    yield engine
    engine.close()


def scheduler(engine: Hosted) -> FakeScheduler:
    near: Any = engine._link
    found: FakeScheduler = near.engine.tokenizer_manager.scheduler
    return found


def test_weights_come_in_parts_that_nobody_samples_from(made: Hosted, path: Path) -> None:
    """Within one update of SGLang's; the last part has the name that counts."""
    reference = RolloutReference(path)
    reference.change(seed=1)
    near: Any = made._link
    near.core._bucket = 20_000
    made.load(2, reference.tensors())
    names = scheduler(made).versions
    assert names[0] == "1"
    assert set(names[1:-1]) == {"2-in-part"}
    assert names[-1] == "2"
    assert near.engine.tokenizer_manager.flushed == 2, "the cache is emptied once a version"
    assert not scheduler(made).updating
    request = Request(PROMPTS[1], SAMPLINGS[0])
    (got,) = run(made, request)
    agrees(reference, request, got)
    assert set(got.versions) == {2}


def test_refused_weights_leave_none_and_the_next_ones_serve(made: Hosted, path: Path) -> None:
    """The update is closed all the same; what ran has ended."""
    tensors = RolloutReference(path).tensors()
    scheduler(made).refuses = "out of memory"

    async def go() -> Completion:
        task = asyncio.create_task(made.generate(Request(PROMPTS[1], LONG)))
        while not made.stats()["generated_tokens"]:
            await asyncio.sleep(0)
        with pytest.raises(RolloutError, match="did not take a weight update: out of memory"):
            made.load(2, tensors)
        return await task

    assert asyncio.run(go()).finish_reason == "abort"
    assert made.version == -1
    assert not scheduler(made).updating
    with pytest.raises(RolloutError, match="load"):
        run(made, Request(PROMPTS[1], SAMPLINGS[0]))
    scheduler(made).refuses = ""
    made.load(3, tensors)
    assert set(run(made, Request(PROMPTS[1], SAMPLINGS[0]))[0].versions) == {3}


def test_a_weight_that_came_before_must_come_again(made: Hosted, path: Path) -> None:
    """SGLang would keep the old one; what serves goes on."""
    tensors = RolloutReference(path).tensors()
    name = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(RolloutError, match="no weights came for .*down_proj"):
        made.load(2, {n: t for n, t in tensors.items() if n != name})
    assert made.version == 1
    with pytest.raises(RolloutError, match="no use for 1 given tensors"):
        made.load(2, tensors | {"more": tensors[name]})
    made.load(3, tensors)
    assert set(run(made, Request(PROMPTS[1], SAMPLINGS[0]))[0].versions) == {3}


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_under_requests_and_a_load_before_wake(made: Hosted, path: Path, level: int) -> None:
    """Requests end first; weights get their memory again for what comes into it."""
    kinds = {"kv_cache"} if level == 1 else {"kv_cache", "weights"}

    async def go() -> list[Completion]:
        tasks = [asyncio.create_task(made.generate(Request(PROMPTS[1], LONG))) for _ in "abc"]
        while not made.stats()["generated_tokens"]:
            await asyncio.sleep(0)
        made.sleep(level)
        assert scheduler(made).memory == kinds
        return await asyncio.gather(*tasks)

    assert {got.finish_reason for got in asyncio.run(go())} == {"abort"}
    made.load(2, RolloutReference(path).tensors())
    assert scheduler(made).memory == {"kv_cache"}
    made.wake()
    assert not scheduler(made).memory
    assert set(run(made, Request(PROMPTS[1], SAMPLINGS[0]))[0].versions) == {2}


def test_figures(made: Hosted) -> None:
    """Of what runs, and of what was computed."""

    async def go() -> dict[str, float]:
        task = asyncio.create_task(made.generate(Request(PROMPTS[1], LONG)))
        while not made.stats()["generated_tokens"]:
            await asyncio.sleep(0)
        seen = made.gauges()
        made.pause()
        made.resume()
        await task
        return seen

    seen = asyncio.run(go())
    assert seen["running"] == 1
    assert len(PROMPTS[1]) < seen["kv_used_tokens"] < seen["kv_total_tokens"]
    found = made.stats()
    assert (found["prefill_tokens"], found["generated_tokens"]) == (len(PROMPTS[1]), 40)


def test_what_the_engine_is_started_with(path: Path) -> None:
    """On a GPU it shares memory with a trainer; what the user names has the last word."""
    config = Hosted.Config(tensor_parallel=2, engine={"attention_backend": "triton", "seed": 1})
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)), device="cuda:1")
    found = engine_arguments(config, spec, "bfloat16", 64)
    assert (found["tp_size"], found["base_gpu_id"], found["context_length"]) == (2, 1, 64)
    assert found["enable_memory_saver"]
    assert found["attention_backend"] == "triton"
    plain = engine_arguments(Hosted.Config(), RolloutSpec(str(path), spec.model), "float32", 64)
    assert plain["device"] == "cpu"
    assert "enable_memory_saver" not in plain


# --- the package ----------------------------------------------------------------------------------


@pytest.fixture
def package() -> Iterator[None]:
    """Whatever is imported as sglang here is forgotten."""
    before = {name: module for name, module in sys.modules.items() if _is_sglang(name)}
    yield
    for name in [one for one in sys.modules if _is_sglang(one)]:
        del sys.modules[name]
    sys.modules.update(before)


def _is_sglang(name: str) -> bool:
    return name.partition(".")[0] == "sglang"


def test_what_is_used_of_the_package(package: None) -> None:
    install(drawing)
    assert loaded().requests.GenerateReqInput is fake_sglang_engine.GenerateReqInput


@pytest.mark.timeout(120)
@pytest.mark.skipif(importlib.util.find_spec("sglang") is not None, reason="sglang is there")
def test_a_missing_package_says_what_to_do(path: Path) -> None:
    """From the host's process; the engine can be asked to load again."""
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)))
    engine = SGLangEngine(SGLangEngine.Config(), spec)
    with pytest.raises(RolloutError, match=r"'sglang' cannot be imported.*pip install"):
        engine.load(1, RolloutReference(path).tensors())
    assert engine.version == -1
    engine.close()


__all__ = ["path"]
