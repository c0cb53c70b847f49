"""The judge against a server that speaks chat completions: questions, scores, cache, faults."""

from __future__ import annotations

import asyncio
import json

import pytest

from rlframe.errors import RewardError
from rlframe.requests import Row
from rlframe_plugins.rewards.judge import JudgeReward
from rlframe_plugins.rewards.replies import KnownReplies
from tests.unit.plugins.rewards.local_server import LocalServer, completion
from tests.unit.plugins.rewards.test_http_reward import scored


def judge(server, **options):
    given = {"base_url": server.base_url, "model": "m", "backoff_s": 0.01, **options}
    return JudgeReward(JudgeReward.Config(**given))


def score(reward, *texts, columns=None, on_error="fail"):
    row = Row((1,), {"prompt": "p", "answer": 2} if columns is None else columns, 7)
    return [value for _, value in asyncio.run(scored(reward, texts, row, on_error))]


def asked(body, role="user"):
    return next(m["content"] for m in body["messages"] if m["role"] == role)


def test_the_question_and_the_score():
    with LocalServer(lambda *_: completion("Good. Score: 7")) as server:
        reward = judge(server, template="{prompt}|{response}|{answer}|{{x}}", system="Be fair.")
        assert score(reward, "r {prompt}") == pytest.approx([0.7])
    (body,) = server.requests
    assert asked(body) == "p|r {prompt}|2|{x}"
    assert asked(body, "system") == "Be fair."
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.0, 512)


def test_the_default_question_shows_task_and_response():
    with LocalServer(lambda *_: completion("Score: 10")) as server:
        chat = [{"role": "user", "content": "What?"}]
        assert score(judge(server), "That.", columns={"prompt": chat}) == [1.0]
    text = asked(server.requests[0])
    assert "user: What?" in text
    assert "That." in text
    assert "from 0 to 10" in text


@pytest.mark.parametrize(
    ("reply", "options", "value"),
    [
        ("Score: 3\nNo: score: 4.5", {}, 0.45),
        ("**Score:** 8/10", {}, 0.8),
        ("score = 0", {}, 0.0),
        ('Sure:\n```json\n{"grade": 2}\n```', {"json_key": "grade", "highest": 4.0}, 0.5),
        ("[[B]] 1", {"pattern": r"\[\[B\]\] (\d)", "highest": 1.0}, 1.0),
        ("Score: -1", {"lowest": -1.0, "highest": 1.0}, 0.0),
        ("no idea", {"otherwise": 0.25}, 0.25),
        ("Score: 11", {"otherwise": 0.25}, 0.25),
    ],
)
def test_scores_are_read(reply, options, value):
    with LocalServer(lambda *_: completion(reply)) as server:
        assert score(judge(server, **options), "r") == pytest.approx([value])


@pytest.mark.parametrize(
    ("reply", "options", "message"),
    [
        (completion("no idea"), {}, r"gave no score from 0 to 10 .*'no idea'.*otherwise"),
        (completion("Score: 11"), {}, "11 is outside"),
        (completion('{"a": "x"}'), {"json_key": "a"}, "not a number"),
        (completion("[1]"), {"json_key": "a"}, "no JSON object"),
        (completion(None), {}, "answered no text"),
        ((200, {}, {"choices": []}), {}, "answered no chat completion"),
        ((200, {}, b"{"), {}, "answered no JSON"),
        ((500, {}, "down"), {"retries": 1}, "answered 500 .*down.*after 2 tries"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_address(reply, options, message):
    server = LocalServer(lambda *_: reply)
    with server, pytest.raises(RewardError, match=f"v1/chat/completions.*{message}"):
        score(judge(server, **options), "r")


def test_one_unreadable_score_leaves_the_others():
    def answer(body, number):
        return completion("?" if "bad" in asked(body) else "Score: 5")

    with LocalServer(answer) as server:
        assert score(judge(server), "a", "bad", "b", on_error="skip") == [0.5, 0.5]


def test_equal_questions_are_asked_once():
    with LocalServer(lambda *_: completion("Score: 5")) as server:
        reward = judge(server)
        assert score(reward, "a", "a", "b", "a") == [0.5] * 4
        assert score(reward, "a", "b") == [0.5] * 2
    assert len(server.requests) == 2


def test_failures_are_not_kept():
    def answer(body, number):
        return (400, {}, "no") if number == 1 else completion("Score: 5")

    with LocalServer(answer) as server:
        reward = judge(server)
        assert score(reward, "a", on_error="skip") == []
        assert score(reward, "a") == [0.5]


def test_a_folder_keeps_replies_from_run_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cr3t")
    options = {"cache": str(tmp_path / "kept"), "token_env": "MY_TOKEN"}
    with LocalServer(lambda *_: completion("Score: 5")) as server:
        assert score(judge(server, **options), "a") == [0.5]
        assert score(judge(server, **options), "a") == [0.5]
        assert len(server.requests) == 1
        assert score(judge(server, **options, temperature=1.0), "a") == [0.5]
        assert len(server.requests) == 2
        kept = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
        assert len(kept) == 2
        assert all("s3cr3t" not in path.read_text() for path in kept)
        for path in kept:
            path.write_text("{")
        with pytest.raises(RewardError, match="cannot be read; delete it"):
            score(judge(server, **options), "a")


def test_memory_holds_the_latest():
    known = KnownReplies("", 2)
    for name in "abc":
        known.put(name, name)
        known.get("a" if name == "b" else name)
    assert [known.get(name) for name in "abc"] == ["a", None, "c"]


def test_columns_of_the_template_are_checked_before_the_run():
    with LocalServer(lambda *_: completion("Score: 5")) as server:
        reward = judge(server, template="{response} {reward_model.ground_truth} {anwser}")
        reward.check(["reward_model", "anwser"])
        with pytest.raises(RewardError, match=r"'\{anwser\}', which is no column.*answer"):
            reward.check(["reward_model", "answer"])
        with pytest.raises(RewardError, match=r"reward_model.ground_truth"):
            score(reward, "a", columns={"anwser": 1, "reward_model": {}})
        nested = {"anwser": 1, "reward_model": {"ground_truth": [4]}}
        assert score(reward, "a", columns=nested) == [0.5]
    assert asked(server.requests[0]) == f"a {json.dumps([4])} 1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "host:1"}, "base_url"),
        ({"model": ""}, "model must name"),
        ({"template": "x"}, "field {response}"),
        ({"pattern": "x"}, "needs a group"),
        ({"highest": 0.0}, "highest"),
        ({"temperature": -1.0}, "temperature"),
        ({"otherwise": 2.0}, "otherwise"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        JudgeReward.Config(**{"base_url": "http://h/v1", "model": "m", **options})
