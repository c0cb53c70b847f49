"""The environments and the parsers of tool calls that rlframe ships."""

from __future__ import annotations

from rlframe import Component

__all__ = ["ENVIRONMENTS", "TOOL_PARSERS"]

ENVIRONMENTS = (
    Component(
        "environment",
        "single-turn",
        "rlframe_plugins.envs.single_turn:SingleTurn",
        summary="one prompt, one response",
    ),
    Component(
        "environment",
        "tools",
        "rlframe_plugins.envs.tools.environment:ToolsEnvironment",
        summary="a plain class (file.py:Class) whose methods are tools, or an OpenAI program",
        adapts=True,
    ),
    Component(
        "environment",
        "verifiers",
        "rlframe_plugins.envs.verifiers.environment:VerifiersEnvironment",
        requires=("verifiers",),
        extra="verifiers",
        summary="tasksets of the verifiers package",
    ),
)
TOOL_PARSERS = tuple(
    Component("tool-parser", name, f"rlframe_plugins.parsers.{target}", summary=summary)
    for name, target, summary in (
        ("hermes", "hermes:HermesParser", "JSON between <tool_call> tags"),
        ("qwen", "qwen:QwenParser", "Qwen3-Coder's XML between the tags, or JSON"),
        ("llama", "llama:LlamaParser", "bare JSON, the python tag, lists of Python calls"),
        ("json", "plain_json:JsonParser", "JSON objects anywhere in a message"),
    )
)
