"""Schemas out of type hints and docstrings; arguments that fit them, or what is wrong."""

from __future__ import annotations

import enum
from typing import Literal

import pytest

from rlframe.errors import PluginError
from rlframe_plugins.envs.tools.schema import fitted, tools_of


class Colour(enum.Enum):
    RED = "red"


class Base:
    def inherited(self) -> str:
        """From above."""
        return ""


class Tools(Base):
    """Tools of all kinds."""

    reward = 0.0

    def reset(self, prompt):
        return prompt

    def search(self, query: str, limit: int = 3, tags: list[str] | None = None) -> str:
        """Look something up.

        In the whole archive.

        Args:
            query: what to look for,
                in words.
            limit (int): how many.
            tags: of the documents.

        Returns:
            What was found.
        """
        return query * limit

    async def paint(self, colour: Colour, where: dict[str, float], how: Literal["a", "b"]) -> None:
        """Paint."""

    @staticmethod
    def now() -> str:
        return ""

    def _hidden(self, x):
        return x


def test_the_public_methods_are_the_tools():
    found = {tool["function"]["name"]: tool["function"] for tool in tools_of(Tools)}
    assert list(found) == ["inherited", "search", "paint", "now"]
    search = found["search"]
    assert search["description"] == "Look something up.\n\nIn the whole archive."
    assert search["parameters"] == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for, in words."},
            "limit": {"type": "integer", "description": "how many."},
            "tags": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "description": "of the documents.",
            },
        },
        "required": ["query"],
    }
    assert found["paint"]["parameters"]["properties"] == {
        "colour": {"enum": ["red"]},
        "where": {"type": "object", "additionalProperties": {"type": "number"}},
        "how": {"enum": ["a", "b"]},
    }
    assert found["now"]["parameters"]["properties"] == {}


def method(function):
    return type("Env", (), {"tool": function})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda self, x: x, "Env.tool: parameter 'x' has no type"),
        (lambda self, *x: x, "'x' cannot be given by name"),
    ],
)
def test_what_has_no_schema_is_told(function, message):
    with pytest.raises(PluginError, match=message):
        tools_of(method(function))


def test_a_type_that_json_has_not_is_told():
    def tool(self, x: bytes) -> str:
        return ""

    with pytest.raises(PluginError, match="Env.tool, parameter 'x': JSON has no type bytes"):
        tools_of(method(tool))


SEARCH = next(t for t in tools_of(Tools) if t["function"]["name"] == "search")
PAINT = next(t for t in tools_of(Tools) if t["function"]["name"] == "paint")


@pytest.mark.parametrize(
    ("tool", "given", "wanted"),
    [
        (SEARCH, {"query": "a"}, {"query": "a"}),
        (SEARCH, {"query": "5", "limit": "5"}, {"query": "5", "limit": 5}),
        (SEARCH, {"query": "a", "limit": 2.0}, {"query": "a", "limit": 2}),
        (SEARCH, {"query": "a", "tags": ["b"]}, {"query": "a", "tags": ["b"]}),
        (SEARCH, {"query": "a", "tags": None}, {"query": "a", "tags": None}),
        (
            PAINT,
            {"colour": "red", "where": '{"x": 1}', "how": "a"},
            {"colour": "red", "where": {"x": 1}, "how": "a"},
        ),
    ],
)
def test_arguments_that_fit(tool, given, wanted):
    assert fitted(given, tool) == wanted


@pytest.mark.parametrize(
    ("tool", "given", "message"),
    [
        (SEARCH, {}, "search needs the parameter 'query'"),
        (
            SEARCH,
            {"query": "a", "x": 1},
            "search has no parameter 'x': it takes query, limit, tags",
        ),
        (SEARCH, {"query": 5}, "search: 'query' must be \"string\", not 5"),
        (SEARCH, {"query": "a", "limit": "many"}, '\'limit\' must be "integer", not "many"'),
        (SEARCH, {"query": "a", "limit": True}, "'limit' must be"),
        (SEARCH, {"query": "a", "tags": [1]}, "'tags' must be"),
        (PAINT, {"colour": "blue", "where": {}, "how": "a"}, "'colour' must be [\"red\"]"),
    ],
)
def test_arguments_that_do_not(tool, given, message):
    found = fitted(given, tool)
    assert isinstance(found, str)
    assert message in found
