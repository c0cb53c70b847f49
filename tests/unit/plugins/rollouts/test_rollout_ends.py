"""Loads that are none, and engines that are asked after their end: an error, never a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rlframe.config import ModelConfig
from rlframe.errors import ModelError, RolloutError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Request, Sampling
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.hf import HFRollout
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from tests.unit.plugins.rollouts.sglang_rig import ended, made, path, run, serve

__all__ = ["ended", "path"]

ASKED = Request((5, 9), Sampling(max_new_tokens=4, min_new_tokens=4))


def local(kind: type[TorchRollout] | type[HFRollout], path: Path) -> RolloutEngine:
    return kind(kind.Config(), RolloutSpec(str(path), ModelConfig(path=str(path))))  # type: ignore[arg-type]


MAKERS: dict[str, Callable[[Path], RolloutEngine]] = {
    "torch": lambda path: local(TorchRollout, path),
    "hf": lambda path: local(HFRollout, path),
    "sglang": lambda path: made(path, serve(path)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_version_below_0_is_refused_and_the_last_one_serves(name: str, path: Path) -> None:
    engine, reference = MAKERS[name](path), RolloutReference(path)
    engine.load(3, reference.tensors())
    with pytest.raises(RolloutError, match="-5"):
        engine.load(-5, reference.tensors())
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


def test_weights_of_another_shape_are_named(path: Path) -> None:
    engine, tensors = local(HFRollout, path), RolloutReference(path).tensors()
    name = "model.layers.0.mlp.down_proj.weight"
    with pytest.raises(ModelError, match="down_proj"):
        engine.load(3, tensors | {name: tensors[name][:-1]})
    engine.close()
