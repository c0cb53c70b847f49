"""The calculator's demonstrations are right: calls that its tool answers as they say."""

from __future__ import annotations

import pytest

from rlframe_plugins.envs.tools.schema import fitted, tools_of
from rlframe_plugins.parsers.llama import LlamaParser
from rlframe_templates.envs.calculator import Calculator, demonstrations


def begun(question):
    env = Calculator()
    a, b = (int(number) for number in question.rstrip("=").split("*"))
    assert env.reset(f"{a}+{b}=") == question
    return env


def test_demonstrated_calls_give_the_demonstrated_answers():
    (tool,) = tools_of(Calculator)
    rows = list(demonstrations(200))
    calls = 0
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        question, call, told = second["prompt"].partition("[calc")[0], "", ""
        call, _, told = second["prompt"].removeprefix(question).partition("<eos>")
        (found,) = LlamaParser().parse(call, [tool]).calls
        env = begun(question)
        assert env.calc(**fitted(found.arguments, tool)) == told == second["response"] + "="
        assert env.step(second["response"]) is None
        assert env.reward() == 1.0
        assert first["prompt"] == question
        calls += first["response"] == call
    assert 0 < calls < len(rows) / 4


@pytest.mark.parametrize(("prompt", "said"), [("17+25=", "0042"), ("3+4=", "12"), ("3+4=", "")])
def test_a_sum_and_a_number_in_another_form_earn_nothing(prompt, said):
    env = Calculator()
    env.reset(prompt)
    env.step(said)
    assert env.reward() == 0.0


@pytest.mark.parametrize(
    ("formula", "answer"),
    [("17*25", "0425="), ("99*99", "9801="), ("5-7", "-002="), ("1+2", "0003="), ("1+", "?"),
     ("1**9", "?"), ("__import__('os')", "?"), ("9" * 10 + "*1", "?")],
)  # fmt: skip
def test_the_tool_calculates_and_nothing_else(formula, answer):
    assert Calculator().calc(formula) == answer
