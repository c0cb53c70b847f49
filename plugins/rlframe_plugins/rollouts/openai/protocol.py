"""OpenAI's completions and chat completions, streamed: text in and out, or tokens where offered."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlframe.errors import RolloutError
from rlframe.requests import Request
from rlframe_plugins.rollouts.http.client import HttpOptions, Refused
from rlframe_plugins.rollouts.http.server import Part, Server

__all__ = ["Form", "OpenAIServer"]

_FINISH = {"content_filter": "stop", "tool_calls": "stop", "function_call": "stop"}
"""Reasons of which a response has no own: it is as the endpoint left it."""


@dataclass(frozen=True)
class Form:
    """How an endpoint is asked; ``encode`` and ``decode`` are the tokenizer's."""

    api: Literal["chat", "text", "ids"]
    model: str
    system: str
    extra: Mapping[str, Any]
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]


_CHARACTERS = 1000
"""More of them a token are no text of a model."""


class OpenAIServer(Server):
    """One endpoint; its address is that before ``/chat/completions``."""

    def __init__(
        self, url: str, options: HttpOptions, limit_s: float, idle_s: float, form: Form
    ) -> None:
        super().__init__(url, options, limit_s, idle_s)
        self._form, self.exact = form, form.api == "ids"

    async def check(self) -> str:
        """See :class:`Replica`: any answer will do, since not all list their models."""
        with contextlib.suppress(Refused):
            await self.ask("GET", "/models")
        return ""

    async def parts(self, request: Request) -> AsyncGenerator[Part, None]:
        """See :class:`Server`; text comes whole, since its tokens are known at the end only."""
        path = "/chat/completions" if self._form.api == "chat" else "/completions"
        text, size, finish = list[str](), 0, ""
        most = _CHARACTERS * (request.sampling.max_new_tokens + 1)
        events = self.client.events(path, self._body(request), self.idle_s)
        async with contextlib.aclosing(events):
            async for event in events:
                if not event.get("choices"):  # figures of the use, at the end
                    continue
                choice = event["choices"][0]
                said = choice.get("finish_reason")
                finish = _FINISH.get(said, said) or finish
                if self._form.api == "ids":
                    yield self._tokens(choice, finish or None)
                else:
                    text.append(_text_of(choice))
                    size += len(text[-1])
                    if size > most:
                        raise RolloutError(f"{self.name} sent more than {most} characters")
        if self._form.api != "ids" and finish:
            ids = self._form.encode("".join(text))
            yield Part(ids, [0.0] * len(ids), [0] * len(ids), finish)

    def _body(self, request: Request) -> dict[str, Any]:
        sampling, form = request.sampling, self._form
        body: dict[str, Any] = {
            "model": form.model,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stream": True,
        }
        # Fields that OpenAI itself does not know are sent where they are asked for.
        more = {
            "stop": list(sampling.stop),
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "min_tokens": sampling.min_new_tokens,
        }
        body |= {name: value for name, value in more.items() if value}
        if sampling.seed is not None and sampling.temperature > 0:
            body["seed"] = sampling.seed % 2**31
        body |= self._prompt(request)
        return {k: v for k, v in {**body, **form.extra}.items() if v is not None}

    def _prompt(self, request: Request) -> dict[str, Any]:
        form, ids = self._form, list(request.prompt_ids)
        if form.api == "ids":
            stops = list(request.sampling.stop_token_ids)
            return {
                "prompt": ids,
                "return_token_ids": True,
                "logprobs": 0,
                "stop_token_ids": stops,
                "include_stop_str_in_output": True,
            }
        if form.api == "text":
            return {"prompt": form.decode(ids)}
        system = [{"role": "system", "content": form.system}] if form.system else []
        return {"messages": [*system, {"role": "user", "content": form.decode(ids)}]}

    def _tokens(self, choice: Mapping[str, Any], finish: str | None) -> Part:
        ids = choice.get("token_ids")
        if ids is None and not choice.get("text"):
            ids = []
        if ids is None:
            raise RolloutError(
                f"{self.name} answers without token ids: use rollout.api=text, or a server with "
                "return_token_ids (vLLM 0.11 or later)"
            )
        found = (choice.get("logprobs") or {}).get("token_logprobs") or [0.0] * len(ids)
        if len(found) != len(ids):
            raise RolloutError(
                f"{self.name} sent {len(ids)} token ids and {len(found)} log-probabilities"
            )
        return Part(list(ids), [float(one) for one in found], [0] * len(ids), finish)


def _text_of(choice: Mapping[str, Any]) -> str:
    part = choice["delta"].get("content") if "delta" in choice else choice.get("text")
    return str(part or "")
