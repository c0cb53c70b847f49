"""The remote reward against a server that is slow, refuses, lies, closes or dies."""

from __future__ import annotations

import asyncio
import email.utils
import threading
import time

import pytest

from rlframe.errors import RewardError
from rlframe.requests import Episode, Request, Row, Segment
from rlframe.rewards import Scorer, WeightedReward
from rlframe_plugins.rewards.remote import HttpReward
from tests.unit.plugins.rewards.local_server import LocalServer

ROW = Row((1,), {"prompt": "p", "answer": 2, "more": [1]}, 7, source="a.jsonl:4")
FAST = {"backoff_s": 0.01}


def lengths(body, number=0):
    return 200, {}, {"rewards": [len(sample["response"]) for sample in body["samples"]]}


def score(url, *texts, row=ROW, on_error="fail", **options):
    reward = HttpReward(HttpReward.Config(url=url, **{**FAST, **options}))
    return asyncio.run(scored(reward, texts, row, on_error))


async def scored(reward, texts, row=ROW, on_error="fail"):
    episodes = []
    for text in texts:
        segment = Segment([1], [5], [True], [0.0], [0], [0])
        episodes.append(Episode(Request((1,)), [segment], "stop", text))
    scorer = Scorer([WeightedReward("http", reward)], on_error=on_error, timeout_s=200)
    kept = await scorer.score(row, episodes)
    return [(episode.text, episode.reward) for episode in kept]


def test_samples_are_sent_and_rewards_come_back():
    with LocalServer(lengths) as server:
        assert score(server.url, "a", "bb") == [("a", 1.0), ("bb", 2.0)]
    common = {"prompt": "p", "answer": 2, "more": [1], "finish_reason": "stop"}
    assert server.requests == [
        {"samples": [{**common, "response": "a"}, {**common, "response": "bb"}]}
    ]


def test_batches_columns_and_parts():
    def answer(body, number):
        return 200, {}, [{"x": 1, "y": 2.5} if s["answer"] == 2 else None for s in body["samples"]]

    with LocalServer(answer) as server:
        values = score(server.url, "a", "b", "c", batch=2, columns=("answer",))
    assert values == [("a", 3.5), ("b", 3.5), ("c", 3.5)]
    assert sorted(len(body["samples"]) for body in server.requests) == [1, 2]
    assert set(server.requests[0]["samples"][0]) == {
        "answer", "prompt", "response", "finish_reason"
    }  # fmt: skip


def test_a_fault_of_one_sample_is_its_own():
    def answer(body, number):
        return 200, {}, [{"error": "too odd"}, 1, "x"]

    with LocalServer(answer) as server:
        assert score(server.url, "a", "b", "c", on_error="skip") == [("b", 1.0)]
        with pytest.raises(RewardError, match=rf"{server.url} says of this sample: 'too odd'"):
            score(server.url, "a", "b", "c")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(status):
    def answer(body, number):
        return lengths(body) if number == 3 else (status, {}, "busy")

    with LocalServer(answer) as server:
        assert score(server.url, "a") == [("a", 1.0)]
    assert len(server.requests) == 3


def test_what_does_not_pass_is_an_error_with_address_tries_reply_and_sample():
    server = LocalServer(lambda *_: (500, {}, "out of cheese"))
    with server, pytest.raises(RewardError) as caught:
        score(server.url, "a", retries=2)
    assert len(server.requests) == 3
    for part in (server.url, "500", "out of cheese", "after 3 tries", "'a'", "a.jsonl:4"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((200, {}, b"<html>"), "answered no JSON: '<html>'"),
        ((200, {}, {"rewards": [1, 2, 3]}), "answered 3 rewards for 2 samples"),
        ((200, {}, {"scores": [1, 2]}), "it must be"),
        ((200, {}, 5), "answered 5; it must be"),
        ((200, {}, [True, "x"]), "answered str 'x', not a number"),
        ((200, {}, b"[1, NaN]"), "not a finite number"),
        ((400, {}, "no such field"), "answered 400 .*no such field"),
        ((401, {}, "who"), "token_env"),
        ((404, {}, "lost"), "answered 404"),
        ((302, {"Location": "http://elsewhere"}, ""), "moved to http://elsewhere"),
    ],
)
def test_what_will_not_pass_is_an_error_at_once(reply, message):
    with LocalServer(lambda *_: reply) as server, pytest.raises(RewardError, match=message):
        score(server.url, "a", "b")
    assert len(server.requests) == 1


def test_a_closed_connection_and_a_cut_body_are_tried_again():
    def answer(body, number):
        if number == 1:
            return None
        return (200, {"Content-Length": "1000"}, b"[1") if number == 2 else lengths(body)

    with LocalServer(answer) as server:
        # the handler closes after each reply, so that the second one is cut
        assert score(server.url, "a") == [("a", 1.0)]
    assert len(server.requests) == 3


def test_a_slow_server_times_out_and_is_tried_again():
    release = threading.Event()

    def answer(body, number):
        if number == 1:
            release.wait(60)
        return lengths(body)

    with LocalServer(answer) as server:
        try:
            assert score(server.url, "a", limit_s=0.5) == [("a", 1.0)]
            with pytest.raises(RewardError, match=r"did not answer within limit_s=1e-05, after 1 "):
                score(server.url, "a", limit_s=0.00001, retries=0)
        finally:
            release.set()


def test_a_server_that_dies_is_an_error_and_skipped_where_wanted():
    with LocalServer(lengths) as server:
        reward = HttpReward(HttpReward.Config(url=server.url, retries=1, **FAST))
        assert asyncio.run(scored(reward, ["a"])) == [("a", 1.0)]
        server.close()
        with pytest.raises(RewardError, match="cannot be reached: .*refused.*, after 2 tries"):
            asyncio.run(scored(reward, ["a"]))
        assert asyncio.run(scored(reward, ["a"], on_error="skip")) == []


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_the_wait_that_a_server_asks_for_is_kept_by_all_requests(form):
    times = []

    def answer(body, number):
        times.append(time.monotonic())
        if number > 1:
            return lengths(body)
        date = email.utils.formatdate(time.time() + 2, usegmt=True)
        return 429, {"Retry-After": "1" if form == "seconds" else date}, ""

    with LocalServer(answer) as server:
        assert len(score(server.url, "a", "b", batch=1, concurrency=1)) == 2
    assert min(times[1:]) - times[0] >= 0.9


def test_a_server_that_asks_for_too_long_a_wait_is_an_error():
    server = LocalServer(lambda *_: (503, {"Retry-After": "3600"}, "later"))
    message = "asks to wait 3600 seconds.*longest_wait_s=30"
    with server, pytest.raises(RewardError, match=message):
        score(server.url, "a")
    assert len(server.requests) == 1


def test_no_more_requests_than_wanted_are_under_way():
    lock, now, most = threading.Lock(), [0], [0]

    def answer(body, number):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        return lengths(body)

    with LocalServer(answer) as server:
        assert len(score(server.url, *"abcdefgh", batch=1, concurrency=2)) == 8
    assert most[0] <= 2


def test_requests_start_no_faster_than_wanted():
    times = []

    def answer(body, number):
        times.append(time.monotonic())
        return lengths(body)

    with LocalServer(answer) as server:
        score(server.url, *"abcde", batch=1, per_second=20.0)
    assert max(times) - min(times) >= 4 / 20 - 0.06


def test_the_token_is_sent_and_shown_nowhere(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cr3t")

    def answer(body, number):
        return lengths(body) if number == 1 else (403, {}, "bad token s3cr3t")

    with LocalServer(answer) as server:
        score(server.url, "a", token_env="MY_TOKEN")
        assert server.headers[0]["Authorization"] == "Bearer s3cr3t"
        with pytest.raises(RewardError, match=r"bad token \*\*\*") as caught:
            score(server.url, "a", token_env="MY_TOKEN")
    assert "s3cr3t" not in str(caught.value)
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(RewardError, match="MY_TOKEN.*is not set"):
        HttpReward(HttpReward.Config(url="http://h", token_env="MY_TOKEN")).check([])


def test_columns_that_cannot_be_sent_are_named():
    row = Row((1,), {"prompt": "p", "image": object()}, 0)
    with pytest.raises(RewardError, match="cannot be sent as JSON .*list those to send"):
        score("http://127.0.0.1:9/", "a", row=row)
    reward = HttpReward(HttpReward.Config(url="http://h", columns=("anwser",)))
    with pytest.raises(RewardError, match="'anwser'.*it has: answer"):
        reward.check(["answer"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": ""}, "url must be an address"),
        ({"url": "file:///etc/passwd"}, "url must be an address"),
        ({"url": "http://me:pw@host/"}, "token_env"),
        ({"url": "http://h", "limit_s": 0}, "limit_s"),
        ({"url": "http://h", "retries": -1}, "retries"),
        ({"url": "http://h", "per_second": 0}, "per_second"),
        ({"url": "http://h", "concurrency": 0}, "concurrency"),
        ({"url": "http://h", "batch": -1}, "batch"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        HttpReward.Config(**options)
