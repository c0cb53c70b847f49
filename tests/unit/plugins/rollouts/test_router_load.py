"""500 requests at once over three real servers, of which one is killed -9: each answered once."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe_plugins.rollouts.sglang.engine import SGLangRollout

COUNT = 500
PROMPT = (3, 4, 5)


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Three servers, of which the second one is killed among its first requests."""
    started = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fast_server.py")), lives],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for lives in ("-1", "400", "-1")
    ]
    made = []
    for process in started:
        assert process.stdout is not None
        made.append(int(process.stdout.readline()))
    yield made
    for process in started:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture
def engine(ports: list[int], tmp_path: Path) -> Iterator[SGLangRollout]:
    import torch

    sizes = {"model_type": "qwen2", "vocab_size": 10_000, "max_position_embeddings": 10_000}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    urls = tuple(f"http://127.0.0.1:{port}" for port in ports)
    config = SGLangRollout.Config(url=urls, check_s=0.1, retries=0)
    found = SGLangRollout(config, RolloutSpec(str(tmp_path), ModelConfig(path=str(tmp_path))))
    found._limits = 10_000, 10_000  # not read from the model, which takes longer than all else
    found.load(1, {"w": torch.zeros(1)})
    yield found
    found.close()


def requests(seed: int) -> list[Request]:
    """Random lengths; one of ten has a deadline that may come too early."""
    drawn = random.Random(seed)
    return [
        Request(
            PROMPT,
            Sampling(max_new_tokens=drawn.randint(1, 20)),
            group_id=seed * COUNT + n // 4,
            request_id=f"{seed}-{n}",
            session_id=f"{seed}-{n}",
            deadline_s=0.02 if n % 10 == 0 else None,
        )
        for n in range(COUNT)
    ]


def lazy(port: int) -> socket.socket:
    """A client that asks for much and reads nothing."""
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 10**6}}
    data = json.dumps(body).encode()
    head = f"POST /generate HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    found = socket.create_connection(("127.0.0.1", port), timeout=10)
    found.sendall(head + data)
    return found


async def play(engine: SGLangRollout, asked: list[Request]) -> list[Any]:
    """All at once; one of ten is cancelled on its way."""
    tasks = [asyncio.create_task(engine.generate(request)) for request in asked]
    while sum(task.done() for task in tasks) < COUNT // 4:
        await asyncio.sleep(0.005)
    for task in tasks[5::10]:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def check(asked: list[Request], got: list[Any]) -> None:
    for number, (request, one) in enumerate(zip(asked, got, strict=True)):
        if isinstance(one, asyncio.CancelledError) and number % 10 == 5:
            continue
        assert isinstance(one, Completion), one
        count = len(one.token_ids)
        assert list(one.token_ids) == list(range(len(PROMPT), len(PROMPT) + count))
        if request.deadline_s is None:
            assert (one.finish_reason, count) == ("length", request.sampling.max_new_tokens)
        assert set(one.versions) <= {1}


@pytest.mark.timeout(240)
def test_each_is_answered_once_whatever_dies_and_nothing_is_kept(
    engine: SGLangRollout, ports: list[int]
) -> None:
    idle = [lazy(port) for port in ports]
    first = requests(0)

    async def until_noted() -> list[Any]:
        got = await play(engine, first)
        while engine.stats()["router/deaths"] == 0:  # found by a check, which this loop runs
            await asyncio.sleep(0.001)
        return got

    check(first, asyncio.run(until_noted()))
    assert engine.stats()["router/retries"] > 0
    assert engine.gauges()["router/replicas_up"] == 2
    kept = []
    for seed in (1, 2):
        asked = requests(seed)
        check(asked, asyncio.run(play(engine, asked)))
        del asked
        gc.collect()
        kept.append(len(gc.get_objects()))
    # Groups and sessions are remembered, each a key; nothing else grows.
    assert kept[1] - kept[0] < 2 * COUNT
    assert engine._router._open == {}
    assert all(server._stops == {} for server in engine._servers)
    assert engine.stats()["router/deaths"] == 1
    for one in idle:
        one.close()
