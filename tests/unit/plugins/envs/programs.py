"""Agents as users write them: programs that know nothing of training."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import urllib.error
import urllib.request


def ask(messages, key=None, **more):
    """The least that speaks the protocol."""
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    headers = {"Authorization": f"Bearer {key or os.environ['OPENAI_API_KEY']}"}
    body = json.dumps({"model": "any", "messages": messages, **more}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return answer.read().decode()


def content(text):
    return json.loads(text)["choices"][0]["message"]["content"]


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}}]  # fmt: skip


class Chatter:
    """Three turns through the client that it is given."""

    async def run(self, client, row):
        messages = [{"role": "user", "content": row["prompt"]}]
        for _ in range(3):
            answer = await client.chat.completions.create(model="m", messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            messages.append({"role": "user", "content": "go on"})
        return 0.75


class Caller:
    """A loop over tool calls, as in OpenAI's own examples."""

    async def run(self, client, row) -> float:
        messages = [{"role": "user", "content": "look"}]
        seen = []
        while True:
            answer = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return float(seen == ["a", "b"] and message.content == "found")
            for call in message.tool_calls:
                at = json.loads(call.function.arguments)["at"]
                seen.append(at)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": at * 2})


class Tree:
    """Branches, asks at once, and begins anew."""

    async def run(self, client, row):
        create = functools.partial(client.chat.completions.create, model="m")
        start = [{"role": "user", "content": "one"}]
        first = (await create(messages=start)).choices[0].message.content
        base = [*start, {"role": "assistant", "content": first}]
        await asyncio.gather(
            create(messages=[*base, {"role": "user", "content": "left"}]),
            create(messages=[*base, {"role": "user", "content": "right"}]),
        )
        await create(messages=[{"role": "user", "content": "other"}])
        return 1.0


class Refused:
    """Everything that the endpoint should not take; earns what it refused."""

    async def run(self, client, row):
        codes = []
        for body in (
            {"messages": []},
            {"messages": [{"content": "no role"}]},
            {"messages": [{"role": "user", "content": "x"}], "n": 2},
            {"messages": [{"role": "user", "content": "x"}], "tools": [{"a": 1}]},
            {"messages": [{"role": "user", "content": "x"}], "key": "sk-other"},
        ):
            try:
                ask(**body)
            except urllib.error.HTTPError as error:
                codes.append(error.code)
                json.loads(error.read())["error"]["message"]
        return float(codes == [400, 400, 400, 400, 401])


class Streamer:
    """Reads server-sent events."""

    async def run(self, client, row):
        text = ask([{"role": "user", "content": "x"}], stream=True,
                   stream_options={"include_usage": True})  # fmt: skip
        lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        parts = [json.loads(line) for line in lines[:-1]]
        said = "".join(c["delta"].get("content", "") for p in parts for c in p["choices"])
        usage = parts[-1]["usage"]["completion_tokens"]
        return {"said": float(said == "hey"), "usage": usage, "done": float(lines[-1] == "[DONE]")}


class Endless:
    """Asks until it is refused."""

    async def run(self, client, row):
        messages = [{"role": "user", "content": "x"}]
        while True:
            messages.append({"role": "assistant", "content": content(ask(messages))})
            messages.append({"role": "user", "content": "more"})


class Raises:
    async def run(self, client, row):
        ask([{"role": "user", "content": "x"}])
        raise KeyError("my own fault")


class Silent:
    async def run(self, client, row) -> None:
        """Asks nothing and earns nothing."""


class Rewarded:
    async def run(self, client, row):
        self.length = len(content(ask([{"role": "user", "content": "x"}], max_tokens=2)))

    def reward(self):
        return self.length / 10


class Prepared:
    """Is told something once, before any episode."""

    told = 0.0

    @classmethod
    def prepare(cls, given: float) -> None:
        cls.told += given

    async def run(self, client, row) -> float:
        return self.told
