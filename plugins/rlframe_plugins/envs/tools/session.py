"""One episode as an OpenAI client sees it: every message list finds the tokens that it stands for.

A list that goes on where the policy was heard last extends that conversation, exact to the token;
one that leaves it earlier branches off there; any other begins anew. Each is a training row.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlframe.dialogue import Dialogue, Form, Message, text_of
from rlframe.errors import ModelError
from rlframe.interfaces.data import Generate
from rlframe.requests import Completion, FinishReason, Request
from rlframe_plugins.envs.tools.asked import RefusedError, checked, most_tokens
from rlframe_plugins.envs.tools.play import figures_of, openai_call
from rlframe_plugins.envs.tools.settings import Settings

__all__ = ["Said", "Session"]


@dataclasses.dataclass(frozen=True)
class Said:
    """What the policy said: its message in OpenAI's form, and its tokens."""

    message: dict[str, Any]
    finish_reason: str
    done: Completion
    prompt_tokens: int


@dataclasses.dataclass
class _Thread:
    """A conversation, the keys of its messages, and whether the policy speaks in it now."""

    dialogue: Dialogue
    keys: list[str]
    tools: str
    busy: bool = False


class Session:
    """The conversations of one episode."""

    def __init__(self, settings: Settings, request: Request, generate: Generate) -> None:
        self._settings, self._request, self._generate = settings, request, generate
        self._threads: list[_Thread] = []
        self._forms: dict[str, Form] = {}
        self._asked = 0
        self._over = False
        self._working: set[asyncio.Task[Any]] = set()
        self.figures = figures_of("turns", "tool_calls", "bad_calls")
        self.trace: list[dict[str, Any]] = []
        self.ended: FinishReason | None = None
        """Why the policy answers no more."""
        self.fault: Exception | None = None
        """What the policy's engine raised."""

    @property
    def dialogues(self) -> list[Dialogue]:
        """Those in which the policy was heard, in the order in which they began."""
        return [one.dialogue for one in self._threads if one.dialogue.segments]

    def close(self) -> None:
        """The episode is over: what is still asked of the policy is no part of it."""
        self._over = True
        for task in list(self._working):
            task.cancel()

    async def complete(self, payload: Mapping[str, Any]) -> Said:
        """Answer a request for a chat completion. Raises RefusedError."""
        messages, tools = checked(payload)
        if self.ended is None and self._asked >= self._settings.config.max_turns:
            self.ended = "length"
        if self.ended is not None:
            raise RefusedError(400, "episode_ended", f"the episode has ended: {self.ended}")
        self._asked += 1
        try:
            thread = self._thread(messages, tools)
        except ModelError as error:
            raise RefusedError(400, "invalid_messages", str(error)) from error
        dialogue, room = thread.dialogue, self._room(thread.dialogue, payload)
        request = self._asking(dialogue, room, payload)
        done = await self._asked_of_policy(thread, request)
        said = self._heard(thread, done, tools, len(request.prompt_ids))
        if done.finish_reason in ("abort", "error"):
            self.ended = done.finish_reason
        return said

    async def _asked_of_policy(self, thread: _Thread, request: Request) -> Completion:
        task = asyncio.current_task()
        assert task is not None
        thread.busy = True
        self._working.add(task)
        try:
            done = await self._generate(request)
        except (Exception, asyncio.CancelledError) as error:
            if not self._over:
                self.ended = "error"
                self.fault = error if isinstance(error, Exception) else None
            raise
        finally:
            thread.busy = False
            self._working.discard(task)
        if self._over:
            raise RefusedError(400, "episode_ended", "the episode has ended")
        return done

    def _heard(
        self, thread: _Thread, done: Completion, tools: Sequence[Message], prompt: int
    ) -> Said:
        dialogue = thread.dialogue
        text = dialogue.heard(done)
        self.figures["turns"] += 1
        message: dict[str, Any] = {"role": "assistant", "content": dialogue.answer}
        reason = "length" if done.finish_reason == "length" else "stop"
        parsed = self._settings.parser.parse(text, tools) if tools else None
        if parsed is not None and reason == "stop":
            self.figures["bad_calls"] += len(parsed.faults)
            if parsed.calls:
                self.figures["tool_calls"] += len(parsed.calls)
                calls = [
                    openai_call(c, f"call_{self._asked}_{n}") for n, c in enumerate(parsed.calls)
                ]
                dialogue.called(parsed.content, calls)
                message = {
                    "role": "assistant",
                    "content": parsed.content or None,
                    "tool_calls": [_written(call) for call in calls],
                }
                reason = "tool_calls"
        thread.keys.append(_key(message))
        dialogue.mark()
        self.trace.append({"turn": int(self.figures["turns"]) - 1, "said": text, "finish": reason})
        return Said(message, reason, done, prompt)

    def _thread(self, messages: list[Message], tools: Sequence[Message]) -> _Thread:
        """The conversation that these messages are, ready for the policy to speak."""
        keys, wanted = [_key(message) for message in messages], json.dumps(tools)
        best, at = None, 0
        for thread in self._threads:
            if thread.tools == wanted:
                place = _place(thread, keys)
                if place > at:
                    best, at = thread, place
        if best is None:
            form = self._form(wanted, tools)
            written = [_for_template(message) for message in messages]
            thread = _Thread(self._settings.dialogue(form, written), keys, wanted)
            self._threads.append(thread)
            return thread
        if at < len(best.keys) or best.busy:
            best = _Thread(best.dialogue.marks[at].branch(), best.keys[:at], wanted)
            self._threads.append(best)
            self.figures["branches"] += 1
        before, form = best.dialogue.rewrites, best.dialogue.form
        best.dialogue.say([form.quoted(_for_template(m)) for m in messages[at:]])
        best.keys = keys
        self.figures["rewrites"] += best.dialogue.rewrites - before
        return best

    def _form(self, wanted: str, tools: Sequence[Message]) -> Form:
        if wanted not in self._forms:
            self._forms[wanted] = self._settings.form_with(tools)
        return self._forms[wanted]

    def _room(self, dialogue: Dialogue, payload: Mapping[str, Any]) -> int:
        room = self._settings.room(dialogue, self._request)
        if room < 1:
            self.ended = "length"
            raise RefusedError(
                400,
                "context_length_exceeded",
                f"the messages have {len(dialogue.context)} tokens, env.max_tokens allows "
                f"{self._settings.limit}",
            )
        return most_tokens(payload, room)

    def _asking(self, dialogue: Dialogue, room: int, payload: Mapping[str, Any]) -> Request:
        request = dialogue.request(self._request, room)
        stop = payload.get("stop") or ()
        stops = (stop,) if isinstance(stop, str) else tuple(str(one) for one in stop)
        sampling = request.sampling
        if stops:
            every = tuple(dict.fromkeys((*sampling.stop, *stops)))
            sampling = dataclasses.replace(sampling, stop=every)
        name = f"{self._request.request_id}-a{self._asked}"
        return dataclasses.replace(request, sampling=sampling, request_id=name)


def _place(thread: _Thread, keys: Sequence[str]) -> int:
    """How many messages of a thread a list goes on from: right after one of the policy's."""
    common = 0
    for mine, other in zip(thread.keys, keys, strict=False):
        if mine != other:
            break
        common += 1
    return max((mark for mark in thread.dialogue.marks if mark <= common), default=0)


def _key(message: Message) -> str:
    """What makes two messages the same."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        calls.append([function.get("name"), _arguments(function.get("arguments"))])
    content = text_of(message).strip()
    return json.dumps([message.get("role"), content, calls, message.get("tool_call_id")])


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (json.JSONDecodeError, RecursionError):
        return value


def _for_template(message: Message) -> dict[str, Any]:
    """A client's message as chat templates take it: text content, arguments as objects."""
    out = {key: value for key, value in message.items() if value is not None}
    out["content"] = text_of(message)
    if out.get("role") == "developer":
        out["role"] = "system"
    if out.get("tool_calls"):
        calls = []
        for call in out["tool_calls"]:
            function = dict(call.get("function", {}))
            function["arguments"] = _arguments(function.get("arguments"))
            calls.append({**call, "function": function})
        out["tool_calls"] = calls
    return out


def _written(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call for the client, its arguments as JSON text."""
    function = call["function"]
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}
