"""One episode of a class with tools: the model speaks, its calls are answered, until it ends."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rlframe.dialogue import Dialogue, Message
from rlframe.errors import RolloutError
from rlframe.interfaces.data import Generate
from rlframe.interfaces.tools import Parsed, ToolCall
from rlframe.requests import Episode, FinishReason, Request, Row
from rlframe_plugins.envs.tools.pool import HungError, Remote
from rlframe_plugins.envs.tools.schema import fitted
from rlframe_plugins.envs.tools.settings import Settings, messages_of

__all__ = ["Play", "RaisedError", "episode_of", "figures_of"]


class RaisedError(Exception):
    """A method of the user's class, other than a tool, raised or took too long."""


class Play:
    """The state of an episode while it is played."""

    def __init__(
        self, settings: Settings, remote: Remote, row: Row, request: Request, generate: Generate
    ) -> None:
        self._settings, self._remote, self._row = settings, remote, row
        self._request, self._generate = request, generate
        self.figures = figures_of("tool_calls", "tool_errors", "bad_calls", "tool_timeouts")
        self.trace: list[dict[str, Any]] = []
        self._left_s = settings.config.tool_total_s
        self._lost = False
        """Whether the environment was killed, and with it what it knew."""
        self.dialogue: Dialogue | None = None

    async def run(self, *, can_step: bool, rewards: bool) -> Episode:
        """Play. Raises DiedError, RaisedError and what the policy's engine raises."""
        limit = self._settings.config.tool_timeout_s
        columns = dict(self._row.columns)
        reply = await self._must("reset", limit, columns=columns, seed=self._row.group_id)
        first = reply.get("value")
        name = self._settings.name
        dialogue = self._settings.begin(
            self._row, None if first is None else messages_of(first, name)
        )
        self.dialogue = dialogue
        finish = await self._turns(dialogue, can_step)
        earned = None
        if rewards:
            earned = 0.0 if self._lost else (await self._must("reward", limit)).get("value")
        self.figures["turns"] = dialogue.turns
        return episode_of(self._request, [dialogue], finish, self.figures, self.trace, earned)

    async def _turns(self, dialogue: Dialogue, can_step: bool) -> FinishReason:
        most = self._settings.config.max_turns
        for turn in range(most):
            room = self._settings.room(dialogue, self._request)
            if room < 1:
                if not turn:
                    raise RolloutError(_no_room(dialogue, self._settings))
                return "length"
            done = await self._generate(dialogue.request(self._request, room))
            said = dialogue.heard(done)
            note = {"turn": turn, "said": said, "tokens": len(done.token_ids)}
            self.trace.append(note)
            if done.finish_reason != "stop":
                return done.finish_reason
            new = await self._answers(dialogue, said, note, can_step)
            over = self._lost or await self._after_turn(dialogue, note)
            if new is None or over:
                return "stop"
            if turn + 1 < most:
                before = dialogue.rewrites
                dialogue.say([dialogue.form.quoted(message) for message in new])
                self.figures["rewrites"] += dialogue.rewrites - before
        return "length"

    async def _answers(
        self, dialogue: Dialogue, said: str, note: dict[str, Any], can_step: bool
    ) -> list[Message] | None:
        """The messages that answer what the model said; None where there is nothing to answer."""
        parsed = self._settings.parser.parse(said, self._settings.tools)
        if self._settings.tools and (parsed.calls or parsed.faults):
            return await self._tool_messages(dialogue, parsed, note)
        if not can_step:
            return None
        config = self._settings.config
        reply = await self._must(
            "step", config.tool_timeout_s, text=said, most=config.max_tool_output
        )
        note["step"] = reply.get("value")
        if reply.get("value") is None:
            return None
        return messages_of(reply["value"], self._settings.name)

    async def _tool_messages(
        self, dialogue: Dialogue, parsed: Parsed, note: dict[str, Any]
    ) -> list[Message]:
        role, new, notes = self._settings.tool_role, list[Message](), list[Any]()
        calls = list[Message]()
        note["tools"] = notes
        for piece in parsed.pieces:
            if piece.fault:
                self.figures["bad_calls"] += 1
                text = f"Error: the call cannot be read: {piece.fault}"
                notes.append({"written": piece.text, "answer": text})
                new.append({"role": role, "content": text})
            elif piece.call is not None:
                number = f"call_{dialogue.turns}_{len(calls)}"
                calls.append(openai_call(piece.call, number))
                text, about = await self._call(piece.call)
                notes.append(about)
                named = {"name": piece.call.name, "tool_call_id": number}
                new.append({"role": role, "content": text, **(named if role == "tool" else {})})
        dialogue.called(parsed.content, calls)
        return new

    async def _call(self, call: ToolCall) -> tuple[str, dict[str, Any]]:
        """The tool's answer to the model, and what the trace says of it."""
        self.figures["tool_calls"] += 1
        about: dict[str, Any] = {"tool": call.name, "arguments": dict(call.arguments)}
        text = await self._called(call, about)
        about["answer"] = text
        return text, about

    async def _called(self, call: ToolCall, about: dict[str, Any]) -> str:
        config, tool = self._settings.config, self._settings.by_name.get(call.name)
        if tool is None:
            self.figures["tool_errors"] += 1
            known = ", ".join(self._settings.by_name)
            return f"Error: there is no tool '{call.name}'. Tools: {known}"
        arguments = fitted(call.arguments, tool)
        if isinstance(arguments, str):
            self.figures["tool_errors"] += 1
            return f"Error: {arguments}"
        limit = min(config.tool_timeout_s, self._left_s)
        if limit <= 0 or self._lost:
            self.figures["tool_timeouts"] += 1
            return f"Error: the time for tools is used up ({config.tool_total_s:g} s)"
        try:
            reply = await self._remote.ask(
                "call",
                limit,
                name=call.name,
                arguments=arguments,
                seconds=limit,
                most=config.max_tool_output,
            )
        except HungError:
            self._lost = True
            reply = {"late": True, "seconds": limit}
        spent = float(reply.get("seconds", 0.0))
        self._left_s -= spent
        self.figures["tool_s"] += spent
        about["seconds"] = round(spent, 6)
        if "where" in reply:
            about["raised_at"] = reply["where"].strip(" ()")
        return self._told(reply, limit)

    def _told(self, reply: dict[str, Any], limit: float) -> str:
        if reply.get("late"):
            self.figures["tool_timeouts"] += 1
            return f"Error: the call took more than {limit:g} s and was ended"
        if "error" in reply:
            self.figures["tool_errors"] += 1
            return f"Error: {reply['error']}"[: self._settings.config.max_tool_output]
        self.figures["tool_cuts"] += bool(reply.get("cut"))
        return str(reply.get("value", ""))

    async def _after_turn(self, dialogue: Dialogue, note: dict[str, Any]) -> bool:
        """Give the turn its own reward; whether the environment is done."""
        reply = await self._must("after_turn", 0.0)
        if reply.get("earned"):
            dialogue.reward(float(reply["earned"]))
            note["reward"] = float(reply["earned"])
        return bool(reply.get("done"))

    async def _must(self, command: str, limit: float, **arguments: Any) -> dict[str, Any]:
        """A command that has to succeed. Raises RaisedError where the user's code does not."""
        seconds = {"seconds": limit} if limit else {}
        try:
            reply = await self._remote.ask(command, limit, **arguments, **seconds)
        except HungError as error:
            raise RaisedError(f"{self._settings.name}.{command} hangs: {error}") from error
        if reply.get("late"):
            raise RaisedError(f"{self._settings.name}.{command} took more than {limit:g} s")
        if "error" in reply:
            told = f"{reply['error']}{reply.get('where', '')}"
            raise RaisedError(f"{self._settings.name}.{command} raised {told}")
        return reply


def figures_of(*names: str) -> defaultdict[str, float]:
    """Counts that are there from the beginning."""
    return defaultdict(float, dict.fromkeys(names, 0.0))


def episode_of(
    request: Request,
    dialogues: Sequence[Dialogue],
    finish: FinishReason,
    figures: Mapping[str, float],
    trace: list[dict[str, Any]],
    earned: Any,
) -> Episode:
    """The episode of finished conversations; its text is what the model said last."""
    segments = [segment for one in dialogues for segment in one.all_segments()]
    text = next((one.answer for one in reversed(dialogues) if one.turns), "")
    return Episode(
        request, segments, finish, text, earned=earned, figures=dict(figures), trace=trace
    )


def openai_call(call: ToolCall, number: str) -> dict[str, Any]:
    """A call as templates and clients know it, its arguments an object."""
    function = {"name": call.name, "arguments": json.loads(json.dumps(dict(call.arguments)))}
    return {"id": number, "type": "function", "function": function}


def _no_room(dialogue: Dialogue, settings: Settings) -> str:
    return (
        f"env {settings.name}: its first messages have {len(dialogue.context)} tokens and the "
        f"context {settings.limit}: raise env.max_tokens, or shorten them (env.describe=false "
        "leaves the tools out)"
    )
