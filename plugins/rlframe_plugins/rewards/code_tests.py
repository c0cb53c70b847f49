"""What a dataset says of a program: inputs and outputs, or assertions."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlframe import RewardError
from rlframe_plugins.rewards.sandbox.client import Outcome, Test

__all__ = ["Assertion", "Printed", "read_tests"]

_FILE = "response.py"
_INPUTS = ("input", "inputs", "stdin")
_OUTPUTS = ("output", "outputs", "stdout", "expected_output")
_HARNESS = """
import json, os, sys
def check():
    asked = json.load(sys.stdin)
    sys.stdin = open(os.devnull)
    names = {"__name__": "response"}
    for name in ("code", "test"):
        exec(compile(asked[name], name, "exec"), names)
    sys.stdout.flush()
    os.write(1, asked["mark"].encode())
check()
"""


@dataclass(frozen=True)
class Printed:
    """The program, given ``input``, must print ``output`` (blanks at line ends aside)."""

    input: str
    output: str

    def test(self, code: str) -> Test:
        """How to run it."""
        return Test((_FILE,), self.input, {_FILE: code})

    def passed(self, outcome: Outcome) -> bool:
        """Whether it ended by itself, without an error, and printed the right thing."""
        good = not outcome.why and outcome.code == 0
        return good and _lines(outcome.output) == _lines(self.output)


@dataclass(frozen=True)
class Assertion:
    """Code that runs after the program and raises where it is wrong.

    That it came to its end is shown by a mark that is new each time, so that a program which exits
    before has not passed.
    """

    source: str
    mark: str = field(default_factory=lambda: secrets.token_hex(16))

    def test(self, code: str) -> Test:
        """How to run it."""
        asked = {"code": code, "test": self.source, "mark": self.mark}
        return Test(("-c", _HARNESS), json.dumps(asked))

    def passed(self, outcome: Outcome) -> bool:
        """Whether it came to its end."""
        return not outcome.why and outcome.code == 0 and outcome.output.endswith(self.mark)


def read_tests(value: Any, path: str) -> list[Printed | Assertion]:
    """The tests in a column, in any of these forms, or one of them as JSON text.

    ``[{"input": .., "output": ..}, ..]``; ``{"inputs": [..], "outputs": [..]}``; assertions as one
    text or a list of texts. Raises RewardError naming the column.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):  # an assertion may begin so, too
            value = json.loads(value)
    if isinstance(value, str) and value.strip():
        return [Assertion(value)]
    if isinstance(value, Mapping):
        value = _pairs(value, path)
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        if all(isinstance(one, str) and one.strip() for one in value):
            return [Assertion(one) for one in value]
        if all(isinstance(one, Mapping) for one in value):
            return [_printed(one, path) for one in value]
    raise RewardError(_wrong(path, value))


def _pairs(value: Mapping[str, Any], path: str) -> list[Mapping[str, Any]]:
    if value.get("fn_name"):
        raise RewardError(
            f"reward 'code': '{path}' calls the function {value['fn_name']!r} by name; write its "
            "tests as assertions"
        )
    inputs, outputs = _one_of(value, _INPUTS, path), _one_of(value, _OUTPUTS, path)
    if isinstance(inputs, str):
        inputs, outputs = [inputs], [outputs]
    lists = isinstance(inputs, list | tuple) and isinstance(outputs, list | tuple)
    if not lists or len(inputs) != len(outputs):
        raise RewardError(f"reward 'code': '{path}' has other numbers of inputs than of outputs")
    return [{"input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]


def _printed(one: Mapping[str, Any], path: str) -> Printed:
    return Printed(_text(_one_of(one, _INPUTS, path)), _text(_one_of(one, _OUTPUTS, path)))


def _one_of(value: Mapping[str, Any], names: Sequence[str], path: str) -> Any:
    for name in names:
        if name in value:
            return value[name]
    raise RewardError(_wrong(path, value))


def _text(value: Any) -> str:
    """Lists are lines."""
    if isinstance(value, list | tuple):
        return "\n".join(str(line) for line in value)
    return str(value)


def _wrong(path: str, value: Any) -> str:
    return (
        f"reward 'code': '{path}' holds no tests: {str(value)[:100]!r}. It takes a list of "
        '{"input": .., "output": ..}, {"inputs": [..], "outputs": [..]}, or assertions as text'
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
