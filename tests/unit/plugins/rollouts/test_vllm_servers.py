"""vLLM servers at addresses: rlframe's routes and their client over HTTP, without vLLM."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch

from rlframe.config import ModelConfig
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request, Sampling
from rlframe.testing.models import tiny_model
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_plugins.rollouts.vllm import serve
from rlframe_plugins.rollouts.vllm.servers import VLLMServers
from tests.unit.plugins.rollouts.vllm_fakes import FakeEngine, FakeRoutes, FakeServer, scope_of

pytestmark = pytest.mark.timeout(60)

WEIGHTS = {"w": torch.ones(3)}
SHORT = Sampling(max_new_tokens=4)


@pytest.fixture
def server():
    made = FakeServer()
    yield made
    made.close()


@pytest.fixture
def engine(server, tmp_path):
    path = str(char_tokenizer(tiny_model(tmp_path / "model")))
    config = VLLMServers.Config(url=(server.url,), check_s=0.05, wait_s=20)
    made = VLLMServers(config, RolloutSpec(path, ModelConfig(path=path)))
    yield made
    made.close()


def allow(server, count):
    async def release():
        for _ in range(count):
            server.engine.gate.release()

    server.submit(release()).result(10)


def told(server):
    return [one[0] for one in server.engine.told]


def test_weights_then_tokens_with_versions(server, engine):
    with pytest.raises(RolloutError, match="load"):
        asyncio.run(engine.generate(Request((5,), SHORT)))
    engine.load(3, WEIGHTS)
    allow(server, 4)
    got = asyncio.run(engine.generate(Request((5, 6), SHORT)))
    assert (got.token_ids, got.versions, got.finish_reason) == (
        (10, 11, 12, 13),
        (3,) * 4,
        "length",
    )
    assert got.logprobs == (-1.0, -1.1, -1.2, -1.3)
    assert server.engine.prompts[0]["prompt_token_ids"] == [5, 6]
    _, (path, entries) = next(one for one in server.engine.told if one[0] == "collective_rpc")[1:]
    assert entries == [["w", "float32", [3], 0]]
    assert path.startswith("/proc/")


def test_vllms_own_figures(server, engine):
    """By the names that the rollout vllm has for them; none where the server shows none."""
    assert "running" not in engine.gauges()
    server.metrics = "\n".join(
        [
            'vllm:num_requests_running{engine="0"} 2.0',
            'vllm:num_requests_waiting{engine="0"} 1.0',
            'vllm:kv_cache_usage_perc{engine="0"} 0.25',
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1.0',
            'vllm:prefix_cache_queries_total{engine="0"} 30.0',
            'vllm:prefix_cache_hits_total{engine="0"} 12.0',
            'vllm:generation_tokens_total{engine="0"} 6.0',
        ]
    )
    now, counted = engine.gauges(), engine.stats()
    assert (now["running"], now["waiting"]) == (2, 1)
    assert (now["kv_used_tokens"], now["kv_total_tokens"]) == (40, 160)
    assert (counted["prefix_hit_tokens"], counted["prefill_tokens"]) == (12, 18)
    assert counted["generated_tokens"] == 6


def test_a_stop_string_ends_it(server, engine):
    engine.load(3, WEIGHTS)
    allow(server, 4)
    got = asyncio.run(engine.generate(Request((5,), Sampling(max_new_tokens=4, stop=("bc",)))))
    assert (got.token_ids, got.finish_reason) == ((10, 11, 12), "stop")


def test_an_abort_keeps_what_came_and_ends_it_there(server, engine):
    engine.load(3, WEIGHTS)

    async def go():
        work = asyncio.create_task(engine.generate(Request((5,), SHORT, request_id="a")))
        while not server.engine.prompts:
            await asyncio.sleep(0.01)
        allow(server, 2)
        while server.engine.drawn < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        engine.abort("a")
        return await work

    got = asyncio.run(go())
    assert got.finish_reason == "abort"
    assert got.token_ids == (10, 11)[: len(got.token_ids)]
    for _ in range(500):
        if server.engine.ended:
            return
        asyncio.run(asyncio.sleep(0.01))
    pytest.fail("the server goes on")


def test_an_error_of_the_engine_is_told(server, engine):
    engine.load(3, WEIGHTS)
    server.engine.breaks = True
    allow(server, 1)
    with pytest.raises(RolloutError, match="no more"):
        asyncio.run(engine.generate(Request((5,), SHORT)))


def test_pause_and_sleep_reach_the_server(server, engine):
    engine.load(3, WEIGHTS)
    server.engine.told.clear()
    engine.pause("keep")
    engine.resume()
    assert told(server) == ["pause_generation", "resume_generation"]
    engine.sleep(2)
    assert engine.version == -1
    with pytest.raises(RolloutError, match="asleep"):
        asyncio.run(engine.generate(Request((5,), SHORT)))
    engine.wake()
    engine.load(4, WEIGHTS)
    assert engine.version == 4


# --- who may ask ----------------------------------------------------------------------------------


ENTRY = ["a", "float32", [2], 0]


def asked(routes, path, body, headers=()):
    """Status and JSON of one request."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message):
        sent.append(message)

    asyncio.run(routes(scope_of(path, FakeEngine(), headers), receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    ("sent", "status"), [((), 401), ([(b"authorization", b"Bearer no")], 401), (None, 200)]
)
def test_a_token_is_asked_for(sent, status):
    class Locked(FakeRoutes):
        token = "secret"

    good = [(b"authorization", b"Bearer secret")]
    found, _ = asked(Locked(None), "/rlframe/stats", {}, good if sent is None else sent)
    assert found == status


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/proc/12/fd/5", 200),
        ("/proc/12/fd/../../1/environ", 400),
        ("/etc/passwd", 400),
        ("/shared/weights/a", 200),
        ("/shared/weights/../a", 400),
    ],
)
def test_weights_are_read_from_where_they_may_be(path, status):
    class Shared(FakeRoutes):
        folder = "/shared/weights"

    body = {"version": 1, "path": path, "entries": [ENTRY]}
    found, answer = asked(Shared(None), "/rlframe/load", body)
    assert found == status, answer


def test_what_is_wrong_is_said():
    assert asked(FakeRoutes(None), "/rlframe/nothing", {})[0] == 400
    status, answer = asked(FakeRoutes(None), "/rlframe/generate", {})
    assert (status, "no weights" in answer["error"]) == (400, True)
    assert asked(FakeRoutes(None), "/rlframe/load", {"version": 1})[0] == 400


GOOD = {"prompt_ids": [5], "sampling": {"max_tokens": 1}, "stop": [], "min_new_tokens": 0}


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        *(("generate", GOOD | {"prompt_ids": odd}) for odd in ("abc", [], [-1], ["a"], [1.5], 7)),
        ("generate", GOOD | {"sampling": [1]}),
        ("generate", GOOD | {"stop": "ab"}),
        ("generate", GOOD | {"min_new_tokens": None}),
        *(("load", {"version": v, "entries": [ENTRY]}) for v in (-1, "x", None, 1.5)),
        *(("load", {"version": 4, "entries": odd}) for odd in ([], "abc", [ENTRY[:2]], [[1] * 4])),
        ("load", {"version": 4, "entries": [["a", "float32", [-2], 0]]}),
        ("sleep", {"level": "deep", "real": False}),
        ("pause", {}),
    ],
)
def test_what_cannot_be_reaches_no_engine(verb, body):
    """The weights that serve go on serving."""
    routes = FakeRoutes(None)
    parcel = {"path": "/proc/12/fd/3"}
    load = {**parcel, "version": 3, "entries": [ENTRY]}
    assert asked(routes, "/rlframe/load", load)[0] == 200
    before = list(routes._core._engine.told)
    status, answer = asked(routes, f"/rlframe/{verb}", parcel | body)
    assert status == 400
    assert "error" in answer
    assert routes._core._engine.told == before
    assert routes._core.version == 3


def test_other_paths_are_vllms():
    passed = []

    async def app(scope, receive, send):
        passed.append(scope["path"])

    asyncio.run(FakeRoutes(app)(scope_of("/v1/models", None), None, None))
    assert passed == ["/v1/models"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "example.org"])
def test_a_server_is_not_opened_without_a_token(host, capsys):
    with pytest.raises(SystemExit):
        serve.main(["model", "--host", host])
    assert "--token-env" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        serve.main(["model", "--token-env", "RLFRAME_NO_SUCH_TOKEN"])


def test_arguments_of_the_server():
    found = serve.server_arguments("folder", "127.0.0.1", 8000)
    assert found[found.index("--logprobs-mode") + 1] == "processed_logprobs"
    module, _, name = found[found.index("--middleware") + 1].rpartition(".")
    assert (module, name) == ("rlframe_plugins.rollouts.vllm.routes", "Routes")
