"""The rollout sglang over real HTTP: the kit, several servers, weights, what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from rlframe.errors import ConfigError, EngineError, ModelError, RolloutError
from rlframe.interfaces.rollout import RolloutEngine
from rlframe.requests import Request
from rlframe.testing.rollout_kit import PROMPTS, SAMPLINGS, RolloutKit
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.sglang.engine import SGLangRollout
from tests.e2e.small import make_questions, options
from tests.unit.plugins.rollouts.sglang_rig import LASTING, agrees, ended, made, path, run, serve


class OverHttp(RolloutKit):
    """Each engine asks a server of its own."""

    rollout = "sglang"
    incremental = False
    lasting = LASTING

    def make(self, target: type[RolloutEngine], path: Path, **options: Any) -> RolloutEngine:
        server = serve(path, incremental=self.incremental)
        server.scheduler.lasting = LASTING
        return super().make(target, path, url=(server.url,), **options)


class TestSGLang(OverHttp):
    __test__ = True


def test_streams_of_new_tokens_only_are_read_too(path: Path) -> None:
    reference = RolloutReference(path)
    engine = made(path, serve(path, incremental=True))
    engine.load(3, reference.tensors())
    requests = [Request(p, s) for p in PROMPTS for s in SAMPLINGS]
    for request, got in zip(requests, run(engine, *requests), strict=True):
        agrees(reference, request, got)
        assert set(got.versions) <= {3}
    engine.close()


def test_every_server_gets_the_weights_and_groups_stay_whole(path: Path) -> None:
    reference = RolloutReference(path)
    servers = [serve(path), serve(path)]
    engine = made(path, *servers)
    for version in (1, 2):
        reference.change(seed=version)
        engine.load(version, reference.tensors())
        requests = [
            Request(PROMPTS[1], SAMPLINGS[0], group_id=10 * version + n // 3) for n in range(12)
        ]
        for request, got in zip(requests, run(engine, *requests), strict=True):
            agrees(reference, request, got)
            assert set(got.versions) == {version}
    assert [one.scheduler.weight_version for one in servers] == ["2", "2"]
    asked = [sum(p == "/generate" for _, p, _ in one.asked) for one in servers]
    assert asked == [12, 12]
    folders = list(Path(servers[0].model_path).parent.glob("weights-*"))
    assert len(folders) == 2, "older weights are to be removed"
    engine.close()
    assert not Path(servers[0].model_path).exists()


def test_a_run_trains_with_it(path: Path, tmp_path: Path) -> None:
    """Weights of every step reach the server; what it draws is learned from.

    It has given its memory back before each of them comes.
    """
    server = serve(path)
    questions = make_questions(tmp_path / "q.jsonl")
    given = options(tmp_path, path, questions, steps=3)
    folder = tmp_path / "weights"
    given["rollout"] = {"name": "sglang", "url": [server.url], "directory": str(folder)}
    given["rollout"]["max_new_tokens"] = 4
    given["optim"] = {"lr": 0.01}
    given["checkpoint"] = {"name": "hybrid", "after_generation": "release"}
    done = rlframe.fit(**given)
    assert done.summary["steps"] == 3
    assert server.scheduler.weight_version == "3"
    releases = [body["tags"] for _, where, body in server.asked if where.startswith("/release")]
    assert releases == [["kv_cache", "weights"]] * 3
    learned = load_file(Path(server.model_path) / "model.safetensors")
    base = RolloutReference(path).tensors()
    assert set(learned) == set(base)
    changed = [name for name, tensor in learned.items() if not torch.equal(tensor, base[name])]
    assert "model.embed_tokens.weight" in changed
    assert Path(server.model_path).parent == folder, "a folder that is given is kept"


def test_weights_that_a_server_cannot_read_are_an_error_and_it_goes_on(path: Path) -> None:
    server = serve(path)
    engine = made(path, server)
    engine.load(1, RolloutReference(path).tensors())
    save, engine._save = engine._save, lambda tensors: Path("/nowhere")  # type: ignore[method-assign]
    with pytest.raises(RolloutError, match="update_weights_from_disk answered 400"):
        engine.load(2, RolloutReference(path).tensors())
    engine._save = save  # type: ignore[method-assign]
    assert engine.version == 1
    assert set(run(engine, Request(PROMPTS[1], SAMPLINGS[0]))[0].versions) == {1}
    engine.close()


def test_memory_is_given_back_by_name(path: Path) -> None:
    server = serve(path)
    engine = made(path, server)
    engine.load(1, RolloutReference(path).tensors())
    engine.sleep(1)
    assert server.scheduler.memory == {"kv_cache"}
    engine.wake()
    engine.sleep(2)
    assert server.scheduler.memory == {"kv_cache", "weights"}
    engine.wake()
    assert server.scheduler.memory == set()
    assert engine.version == -1
    engine.close()


def test_no_server_is_told_within_the_limit(path: Path) -> None:
    server = serve(path)
    engine = made(path, server, wait_s=0.5)
    engine.load(1, RolloutReference(path).tensors())
    server.die()
    with pytest.raises(EngineError, match=r"within rollout.wait_s=0.5 s: http://.*reached"):
        run(engine, Request(PROMPTS[1], SAMPLINGS[0]))
    engine.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [({"url": ()}, "url must hold"), ({"url": ("nowhere",)}, "url must be an address")],
)
def test_an_address_is_needed(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SGLangRollout.Config(**given)


def test_a_token_comes_from_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SGLangRollout.Config(url=("http://x:1",), token_env="SGLANG_TOKEN_OF_TEST")
    monkeypatch.delenv("SGLANG_TOKEN_OF_TEST", raising=False)
    with pytest.raises(ConfigError, match="export SGLANG_TOKEN_OF_TEST"):
        config.options()
    monkeypatch.setenv("SGLANG_TOKEN_OF_TEST", " hush ")
    assert config.options().token == "hush"


def test_a_model_that_is_not_there_is_told(path: Path) -> None:
    engine = made(path, serve(path))
    engine.load(1, RolloutReference(path).tensors())
    shutil.move(path / "config.json", path / "other.json")
    with pytest.raises(ModelError, match="no model config"):
        run(engine, Request(PROMPTS[1], SAMPLINGS[0]))
    engine.close()


__all__ = ["ended", "path"]
