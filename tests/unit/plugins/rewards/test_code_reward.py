"""The code reward: which program it takes, the forms of tests, shares, and what cannot cheat it."""

from __future__ import annotations

import asyncio
import json

import pytest

from rlframe.errors import RewardError
from rlframe.requests import Episode, Request, Row, Segment
from rlframe.rewards import Scorer, WeightedReward
from rlframe_plugins.rewards import code
from rlframe_plugins.rewards.code import CodeReward, last_program
from rlframe_plugins.rewards.sandbox.client import Unavailable

PAIRS = [{"input": "1 2", "output": "3"}, {"input": "2 2\n", "output": "4\n"}]
ADD = "a, b = map(int, input().split())\nprint(a + b)"
FUNCTION = "def add(a, b):\n    return a + b"


def block(program, language="python"):
    return f"So:\n```{language}\n{program}\n```\nThat is it."


def score(tests, *texts, column="tests", **options):
    reward = CodeReward(CodeReward.Config(**options))
    row = Row((1,), {"prompt": "p", column: tests}, 0)
    episodes = []
    for text in texts:
        segment = Segment([1], [5], [True], [0.0], [0], [0])
        episodes.append(Episode(Request((1,)), [segment], "stop", text))
    scorer = Scorer([WeightedReward("code", reward)], timeout_s=250)
    asyncio.run(scorer.score(row, episodes))
    return [episode.reward for episode in episodes]


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("no code", None),
        ("```python\na\n```\n```py\nb\n```\n", "b\n"),
        ("```python\na\n```\n```bash\nls\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("``` Python title=x\na\n```", "a\n"),
        ("```python\nnever closed", None),
        ("```python\nprint('```')\n```", "print('```')\n"),
    ],
)
def test_the_last_block_of_python_is_taken(text, program):
    assert last_program(text) == program


def test_the_reward_is_the_share_of_tests_that_pass():
    half = "print(3)"
    fails = "print(3); print(4); raise SystemExit(1)"
    values = score(PAIRS, block(ADD), block(half), block(fails), "no code", block("x ="))
    assert values == [1.0, 0.5, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("tests", "program"),
    [
        (json.dumps(PAIRS), ADD),
        ({"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}, ADD),
        ({"input": "1 2", "output": ["3", ""]}, ADD),
        ("assert add(1, 2) == 3", FUNCTION),
        (["assert add(1, 2) == 3", "x = 4\nassert add(2, 2) == x"], FUNCTION),
        ("def check(f):\n    assert f(1, 2) == 3\ncheck(add)", FUNCTION),
    ],
)
def test_the_forms_of_tests(tests, program):
    assert score(tests, block(program), block("def add(a, b): return 0")) == [1.0, 0.0]


@pytest.mark.parametrize(
    "program",
    ["import sys; sys.exit(0)", "import os; os._exit(0)", "def add(a, b): raise SystemExit(0)"],
)
def test_leaving_early_passes_no_assertion(program):
    assert score("assert add(1, 2) == 3", block(program)) == [0.0]


def test_the_main_part_runs_with_inputs_and_not_with_assertions():
    program = f"{FUNCTION}\nif __name__ == '__main__':\n    print(add(*map(int, input().split())))"
    assert score(PAIRS, block(program)) == [1.0]
    assert score("assert add(1, 2) == 3", block(program)) == [1.0]


def test_what_takes_too_long_fails_only_its_own_test():
    program = "n = input()\nwhile n == '2 2': pass\nprint(3)"
    assert score(PAIRS, block(program), test_s=1.0) == [0.5]


def test_usual_columns_are_found_and_another_is_named():
    assert score(PAIRS, block(ADD), column="test_cases") == [1.0]
    with pytest.raises(RewardError, match="needs tests in column tests or .*it has: mine, prompt"):
        CodeReward().check(["prompt", "mine"])
    with pytest.raises(RewardError, match="needs tests in column cases"):
        CodeReward(CodeReward.Config(column="cases")).check(["prompt", "mine"])


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ([], "holds no tests"),
        (3, "holds no tests"),
        ([{"in": "1"}], "holds no tests"),
        ({"inputs": ["1"], "outputs": []}, "other numbers of inputs"),
        ({"fn_name": "add", "inputs": [], "outputs": []}, "'add' by name"),
    ],
)
def test_columns_without_tests_are_an_error(tests, message):
    with pytest.raises(RewardError, match=message):
        score(tests, block(ADD))


def test_a_machine_that_cannot_isolate_is_an_early_error(monkeypatch):
    tried = []

    async def run_tests(way, *rest, **more):
        tried.append(way)
        raise Unavailable("not here")

    monkeypatch.setattr(code, "run_tests", run_tests)
    with pytest.raises(RewardError, match=r"namespaces: not here; filters: .*isolation=process"):
        CodeReward().check(["tests"])
    assert tried == ["namespaces", "filters"]


def test_without_isolation_the_limits_still_hold():
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(600)\nprint(3)"
    loop = "while True: pass"
    values = score(PAIRS, block(ADD), block(daemon), block(loop), isolation="process", test_s=2.0)
    assert values == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    "options", [{"test_s": 0}, {"workers": -1}, {"memory_mb": 1}, {"column": ""}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        CodeReward.Config(**options)
