"""Agents of the package openai, as its users write them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.unit.plugins.envs.programs import TOOLS

ASK = [{"role": "user", "content": "x"}]


class AtOnce:
    """Many requests of one episode at the same time."""

    async def run(self, client, row) -> float:
        create = client.chat.completions.create
        answers = await asyncio.gather(*(create(model="m", messages=ASK) for _ in range(20)))
        return float(all(one.choices[0].message.content == "hey" for one in answers))


class Many:
    async def run(self, client, row) -> float:
        create = client.chat.completions.create
        found = [await create(model="m", messages=ASK) for _ in range(200)]
        return float(len({one.id for one in found}) == 200)


class Streams:
    """Text, and calls of tools, put together from their pieces."""

    async def run(self, client, row):
        text, names, usage = "", [], None
        stream = await client.chat.completions.create(
            model="m", messages=ASK, tools=TOOLS, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                names += [call.function.name for call in choice.delta.tool_calls or ()]
        good = not text and names == ["look"] and usage.completion_tokens > 0
        return float(good)


class LogProbs:
    async def run(self, client, row) -> float:
        answer = await client.chat.completions.create(model="m", messages=ASK, logprobs=True)
        (choice,) = answer.choices
        tokens = choice.logprobs.content
        return float(len(tokens) == answer.usage.completion_tokens and tokens[1].logprob < 0)


class Parts:
    """Content in parts, a developer's message, typed parameters that the run decides."""

    async def run(self, client, row) -> float:
        answer = await client.chat.completions.create(
            model="m",
            messages=[{"role": "developer", "content": "be good"},
                      {"role": "user", "content": [{"type": "text", "text": "a"}]}],
            temperature=0.2, seed=3, user="me", max_completion_tokens=7, tool_choice="auto",
            response_format={"type": "text"}, metadata={"a": "b"},
        )  # fmt: skip
        return float(answer.choices[0].finish_reason == "stop")


UNABLE = {
    "n": {"n": 2},
    "top_logprobs": {"logprobs": True, "top_logprobs": 3},
    "logit_bias": {"logit_bias": {"5": 10}},
    "response_format": {"response_format": {"type": "json_object"}},
    "tool_choice": {"tools": TOOLS, "tool_choice": "required"},
    "max_tokens": {"max_tokens": 0},
    "image_url": {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]},
}  # fmt: skip


class Unable:
    """What the policy cannot do is refused in words that name it; earns the number of those."""

    async def run(self, client, row) -> float:
        import openai

        named = 0
        for name, more in UNABLE.items():
            try:
                await client.chat.completions.create(**{"model": "m", "messages": ASK, **more})
            except openai.BadRequestError as error:
                named += name in str(error)
        return float(named)


class OtherRoutes:
    async def run(self, client, row) -> float:
        import openai

        count = 0
        for ask in (
            client.responses.create(model="m", input="x"),
            client.embeddings.create(model="m", input="x"),
            client.completions.create(model="m", prompt="x"),
        ):
            try:
                await ask
            except openai.NotFoundError as error:
                count += "/v1/chat/completions" in str(error)
        models = [one.id async for one in client.models.list()]
        return float(count == 3 and models == ["policy"])


class Impatient:
    """A time limit of its own, and another try."""

    async def run(self, client, row) -> float:
        import openai

        try:
            await client.with_options(timeout=0.05).chat.completions.create(model="m", messages=ASK)
        except openai.APITimeoutError:
            answer = await client.chat.completions.create(model="m", messages=ASK)
            return float(answer.choices[0].message.content == "hey")
        return -1.0


class Unfinished:
    """Ends while the policy still speaks."""

    async def run(self, client, row) -> float:
        await client.chat.completions.create(model="m", messages=ASK)
        task = asyncio.create_task(client.chat.completions.create(model="m", messages=ASK))
        while not Path(row["asked"]).exists():
            await asyncio.sleep(0.01)
        return float(not task.done())


class Sync:
    """OpenAI's other client, by the environment's variables alone."""

    async def run(self, client, row) -> float:
        import openai

        answer = openai.OpenAI().chat.completions.create(model="m", messages=ASK)
        return float(json.loads(answer.model_dump_json())["object"] == "chat.completion")
