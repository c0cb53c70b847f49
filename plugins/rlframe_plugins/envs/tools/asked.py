"""What a client may ask for: what cannot be done is refused in one sentence, never left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlframe.dialogue import Message

__all__ = ["RefusedError", "checked", "most_tokens"]

_NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})
_UNABLE = {
    "functions": "give tools instead of functions",
    "function_call": "give tools instead of functions",
    "logit_bias": "the policy is trained on the distribution that it has",
    "top_logprobs": "the policy gives the log-probability of the sampled token alone (logprobs)",
    "audio": "the policy speaks text alone",
    "prediction": "the policy samples every token itself",
}
"""Parameters whose answer would differ from what a program counts on, and what to do."""


class RefusedError(Exception):
    """A request that is not served: an HTTP status, a code and a text."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def checked(payload: Mapping[str, Any]) -> tuple[list[Message], list[Message]]:
    """Messages and tools of a request. Raises RefusedError."""
    messages: Any = payload.get("messages")
    tools: Any = payload.get("tools") or []
    good = isinstance(messages, list) and messages
    if not good or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages
    ):
        raise RefusedError(400, "invalid_messages", "messages must be a list with a role each")
    for message in messages:
        _text_alone(message)
    if not isinstance(tools, list) or not all(
        isinstance(t, dict) and isinstance(t.get("function"), dict) and "name" in t["function"]
        for t in tools
    ):
        raise RefusedError(400, "invalid_tools", "tools must be functions with a name")
    _able(payload)
    if payload.get("tool_choice") == "none":
        tools = []
    return messages, tools


def most_tokens(payload: Mapping[str, Any], room: int) -> int:
    """``room``, or fewer where the client wants fewer. Raises RefusedError."""
    for name in ("max_completion_tokens", "max_tokens"):
        most = payload.get(name)
        if most is None:
            continue
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise RefusedError(400, "invalid_value", f"{name} must be at least 1, not {most!r}")
        room = min(room, most)
    return room


def _able(payload: Mapping[str, Any]) -> None:
    """Raises RefusedError for what a policy in training cannot do."""
    if payload.get("n") not in (None, 1):
        raise RefusedError(400, "unsupported", "n must be 1: ask several times")
    for name, why in _UNABLE.items():
        if payload.get(name) not in _NOTHING:
            raise RefusedError(400, "unsupported", f"{name}: {why}")
    kind = payload.get("response_format")
    if isinstance(kind, Mapping) and kind.get("type") not in (None, "text"):
        raise RefusedError(
            400,
            "unsupported",
            f"response_format {kind['type']!r}: what the policy may say is not restricted in "
            "training; ask for JSON in the messages, and read it",
        )
    if payload.get("tool_choice") not in (None, "auto", "none"):
        raise RefusedError(
            400, "unsupported", "tool_choice must be auto or none: a call cannot be forced"
        )


def _text_alone(message: Message) -> None:
    """Raises RefusedError for pictures, sounds and files."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise RefusedError(400, "invalid_messages", "content must be text or a list of parts")
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind not in ("text", "refusal"):
            raise RefusedError(
                400, "unsupported", f"content of type {kind!r}: the policy reads text alone"
            )
