"""Loads that are none, and engines that are asked after their end: an error, never a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rlframe.config import ModelConfig
from rlframe.errors import ModelError, RolloutError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.hf import HFRollout
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from tests.unit.plugins.rollouts.sglang_rig import LONG, Hosted, ended, made, path, run, serve

__all__ = ["ended", "path"]

ASKED = Request((5, 9), Sampling(max_new_tokens=4, min_new_tokens=4))


def local(kind: type[TorchRollout] | type[HFRollout], path: Path) -> RolloutEngine:
    return kind(kind.Config(), RolloutSpec(str(path), ModelConfig(path=str(path))))  # type: ignore[arg-type]


MAKERS: dict[str, Callable[[Path], RolloutEngine]] = {
    "torch": lambda path: local(TorchRollout, path),
    "hf": lambda path: local(HFRollout, path),
    "sglang": lambda path: made(path, serve(path)),
    "sglang-engine": lambda path: Hosted(
        Hosted.Config(), RolloutSpec(str(path), ModelConfig(path=str(path)))
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_no_version_is_refused_and_the_last_one_serves(name: str, path: Path) -> None:
    engine, reference = MAKERS[name](path), RolloutReference(path)
    engine.load(3, reference.tensors())
    for version in (-5, None, "4", 1.5, True):
        with pytest.raises(RolloutError, match=f"{version!r} is no version of weights"):
            engine.load(version, reference.tensors())  # type: ignore[arg-type]
    assert set(run(engine, ASKED)[0].versions) == {3}
    engine.close()


@pytest.mark.parametrize("name", MAKERS)
def test_a_closed_engine_says_so(name: str, path: Path) -> None:
    """Also where it is woken; it may be closed again, and its figures stay."""
    engine = MAKERS[name](path)
    engine.load(3, RolloutReference(path).tensors())
    run(engine, ASKED)
    engine.close()
    engine.close()
    engine.wake()
    with pytest.raises(RolloutError, match="closed"):
        asyncio.run(engine.generate(ASKED))
    assert engine.stats()["requests"] == 1


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_a_close_answers_what_is_open(name: str, paused: bool, path: Path) -> None:
    """With what there is, or an error: none waits on, and none looks cancelled by its caller."""
    engine = MAKERS[name](path)
    engine.load(3, RolloutReference(path).tensors())

    async def go() -> list[Completion | BaseException]:
        if paused:
            engine.pause()
        asked = [asyncio.create_task(engine.generate(Request((5,), LONG))) for _ in "abc"]
        for _ in range(20):
            await asyncio.sleep(0)
        engine.close()
        return await asyncio.gather(*asked, return_exceptions=True)

    for got in asyncio.run(asyncio.wait_for(go(), 60)):
        assert isinstance(got, Completion | RolloutError), got


@pytest.mark.parametrize("name", MAKERS)
def test_no_weights_at_all_are_refused(name: str, path: Path) -> None:
    engine = MAKERS[name](path)
    with pytest.raises(RolloutError, match="version 3 comes without weights"):
        engine.load(3, {})
    assert engine.version == -1
    engine.close()


@pytest.mark.parametrize("name", ["torch", "hf"])
def test_a_deadline_in_the_past_ends_before_the_first_step(name: str, path: Path) -> None:
    engine = MAKERS[name](path)
    engine.load(3, RolloutReference(path).tensors())
    (got,) = run(engine, Request((5,), LONG, deadline_s=-1.0))
    assert (got.token_ids, got.finish_reason) == ((), "abort")
    engine.close()


@pytest.mark.parametrize("name", ["torch", "hf"])
def test_weights_of_another_shape_are_named(name: str, path: Path) -> None:
    engine, tensors = MAKERS[name](path), RolloutReference(path).tensors()
    one = "model.layers.0.mlp.down_proj.weight"
    with pytest.raises(ModelError, match="down_proj"):
        engine.load(3, tensors | {one: tensors[one][:-1]})
    engine.close()
