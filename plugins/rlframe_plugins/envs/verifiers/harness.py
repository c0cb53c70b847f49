"""The agent that plays where a taskset brings none: it talks, calls the tools, and ends.

It runs in the process of the episode, so that an episode costs no start of a program.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import openai
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import mcp_client, mcp_content_to_chat_content

__all__ = ["ChatHarness"]

_OVER = ("episode_ended", "context_length_exceeded")
"""Codes of the endpoint of the run: the policy answers no more, which is no fault."""


class ChatConfig(vf.HarnessConfig):  # type: ignore[misc]
    """Limits of a tool's answer beside those that every harness has."""

    max_tool_output: int = 8192
    """Characters; a longer answer is cut and says so."""


class ChatHarness(vf.Harness[ChatConfig]):  # type: ignore[misc]
    """Asks the policy and answers its calls until a message has none."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Hold the conversation of ``data``; model calls go to ``endpoint``."""
        client = openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None)
        async with client, AsyncExitStack() as stack:
            tools = Tools(self.config)
            for name, url in mcp_urls.items():
                await tools.connect(stack, name, url)
            await self._talk(client, ctx.model, self._opening(data), tools)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    def _opening(self, data: Any) -> list[dict[str, Any]]:
        system, prompt = self.resolve_prompt(data)
        said = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            return [*said, {"role": "user", "content": prompt}]
        return [*said, *(message_to_wire(message) for message in prompt or ())]

    async def _talk(
        self, client: Any, model: str, messages: list[dict[str, Any]], tools: Tools
    ) -> None:
        more = {"tools": tools.schemas} if tools.schemas else {}
        while True:
            try:
                done = await client.chat.completions.create(model=model, messages=messages, **more)
            except openai.BadRequestError as error:
                if any(code in str(error) for code in _OVER):
                    return
                raise
            message = done.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                content = await tools.answer(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


class Tools:
    """The tools of an episode, on the servers that the taskset started for it."""

    def __init__(self, config: ChatConfig) -> None:
        self._config = config
        self._calls: dict[str, tuple[Any, str]] = {}
        self.schemas: list[dict[str, Any]] = []

    async def connect(self, stack: AsyncExitStack, server: str, url: str) -> None:
        """Learn a server's tools. Raises ValueError for a name that another one has."""
        client = await stack.enter_async_context(mcp_client({"url": url}))
        for tool in (await client.list_tools()).tools:
            name = f"{server}_{tool.name}" if server else tool.name
            if name in (self._config.disabled_tools or ()):
                continue
            if name in self._calls:
                raise ValueError(f"two tools are named {name!r}")
            self._calls[name] = client, tool.name
            function = {
                "name": name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            }
            self.schemas.append({"type": "function", "function": function})

    async def answer(self, name: str, arguments: str) -> Any:
        """What a call gave, for the model: content, or what was wrong with it."""
        if name not in self._calls:
            return f"Error: there is no tool '{name}'. Tools: {', '.join(self._calls)}"
        try:
            given = json.loads(arguments or "{}")
        except ValueError as error:
            return f"Error: the arguments are no JSON: {error}"
        if not isinstance(given, Mapping):
            return "Error: the arguments must be an object"
        client, known = self._calls[name]
        limit = self._config.tool_timeout
        try:
            async with asyncio.timeout(limit):
                result = await client.call_tool(known, dict(given))
        except TimeoutError:
            return f"Error: the call took more than {limit:g} s and was ended"
        return self._bounded(mcp_content_to_chat_content(result.content))

    def _bounded(self, content: Any) -> Any:
        most = self._config.max_tool_output
        if not isinstance(content, str) or len(content) <= most:
            return content
        return f"{content[:most]}\n[{len(content) - most} more characters were cut]"
