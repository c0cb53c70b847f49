"""How messages are written: by the tokenizer's chat template, or one after the other.

A form says which text follows what the model said (the end of its message, the new messages, the
opening of its next one), and notices a template that would write earlier messages otherwise now.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlframe.errors import ModelError

__all__ = [
    "ChatForm",
    "Follow",
    "Form",
    "Message",
    "PlainForm",
    "first_rewrite",
    "form_of",
    "text_of",
]

Message = Mapping[str, Any]
"""A chat message: ``role``, ``content``, and what else a template reads."""

_MARK = "rlframe-marks-this-place"
_SPACE = re.compile(r"\s+")
_SHOWN = 40
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
"""Characters of the private area around the number of a special token that is only quoted."""
_QUOTED = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


@dataclass(frozen=True)
class Follow:
    """What follows a message of the model: ``added`` to the text so far, or all of it anew."""

    added: str
    whole: str
    rewritten: str = ""
    """Where and how the template writes earlier messages otherwise; empty: it doesn't."""


class Form(ABC):
    """Messages as text and tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        found = {str(one) for one in tokenizer.all_special_tokens}
        self._special = sorted(found, key=lambda one: (-len(one), one))

    @abstractmethod
    def prompt(self, messages: Sequence[Message]) -> str:
        """The messages, and the opening of the model's answer."""

    @abstractmethod
    def follow(self, text: str, history: Sequence[Message], new: Sequence[Message]) -> Follow:
        """What follows ``history``, whose last message is the model's own.

        ``text`` is how the history stands so far, its last message without an end. Raises
        ModelError where the template refuses the messages.
        """

    def quoted(self, message: Message) -> dict[str, Any]:
        """A message of somebody else: special tokens in its content will be text, no tokens."""
        content = text_of(message)
        for number, special in enumerate(self._special):
            content = content.replace(special, f"{_OPEN}{number}{_CLOSE}")
        return {**message, "content": content}

    def encode(self, text: str) -> list[int]:
        """Its tokens, none added."""
        clean, ids = text.encode("utf-8", "replace").decode("utf-8"), list[int]()
        for number, part in enumerate(_QUOTED.split(clean)):
            text = self._special[int(part)] if number % 2 else part
            plain = bool(number % 2)
            ids += self.tokenizer(text, add_special_tokens=False, split_special_tokens=plain)[
                "input_ids"
            ]
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """The text of tokens, special ones with it or left out."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        return text


class PlainForm(Form):
    """Contents one after the other, for a tokenizer without chat template."""

    def prompt(self, messages: Sequence[Message]) -> str:
        """See :class:`Form`."""
        return "".join(text_of(message) for message in messages)

    def follow(self, text: str, history: Sequence[Message], new: Sequence[Message]) -> Follow:
        """See :class:`Form`: nothing is ever rewritten."""
        added = self.prompt(new)
        return Follow(added, text + added)


class ChatForm(Form):
    """The tokenizer's chat template, with the tools that it is to tell of."""

    def __init__(self, tokenizer: Any, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(tokenizer)
        self._tools = [dict(tool) for tool in tools] or None

    def prompt(self, messages: Sequence[Message]) -> str:
        """See :class:`Form`. Raises ModelError where the template refuses the messages."""
        return self._render(messages, opened=True)

    def follow(self, text: str, history: Sequence[Message], new: Sequence[Message]) -> Follow:
        """See :class:`Form`."""
        try:
            return self._follow(text, history, new)
        except ModelError:
            structured = [_structured(message) for message in history]
            if structured == [dict(message) for message in history]:
                raise
            # Some templates take a tool's answer only after a call that they wrote themselves.
            return self._follow(None, structured, new)

    def tells_of_tools(self, messages: Sequence[Message]) -> bool:
        """Whether the template writes the tools into a prompt."""
        bare = ChatForm(self.tokenizer).prompt(messages)
        return self._tools is None or bare != self.prompt(messages)

    def _follow(
        self, text: str | None, history: Sequence[Message], new: Sequence[Message]
    ) -> Follow:
        before = self._render(history)
        whole = self._render([*history, *new], opened=True)
        if not whole.startswith(before):
            return Follow("", whole, _difference(before, whole))
        added = self._closing(history) + whole[len(before) :]
        if text is not None and _squash(text + added) != _squash(whole):
            return Follow(added, whole, _difference(text + added, whole))
        return Follow(added, whole)

    def _closing(self, history: Sequence[Message]) -> str:
        """What the template writes after the content of a last message of the model."""
        marked = {"role": "assistant", "content": _MARK}
        rendered = self._render([*history[:-1], marked])
        _, found, closing = rendered.rpartition(_MARK)
        if not found:
            raise ModelError("the chat template leaves out what the model said last")
        return closing

    def _render(self, messages: Sequence[Message], opened: bool = False) -> str:
        from jinja2 import TemplateError

        written = [{k: v for k, v in m.items() if k not in ("raw_calls",)} for m in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                written, tools=self._tools, add_generation_prompt=opened, tokenize=False
            )
        except (TemplateError, TypeError, KeyError, ValueError, AttributeError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ModelError(
                f"the chat template refused messages of {roles}: {type(error).__name__}: {error}"
            ) from error
        return str(text)


def form_of(
    tokenizer: Any,
    tools: Sequence[Mapping[str, Any]] = (),
    kind: Literal["auto", "chat", "plain"] = "auto",
) -> Form:
    """The form of a tokenizer; ``auto`` is its chat template where it has one.

    Raises ModelError for ``chat`` without a template.
    """
    has = bool(getattr(tokenizer, "chat_template", None))
    if kind == "chat" and not has:
        raise ModelError("the tokenizer has no chat template: set env.template=plain")
    return ChatForm(tokenizer, tools) if has and kind != "plain" else PlainForm(tokenizer)


def first_rewrite(form: Form, answer: Message, said: Sequence[str]) -> str:
    """How the form rewrites history when the model says ``said``, each answered alike; else empty.

    Raises ModelError where the template refuses such a conversation.
    """
    messages: list[Message] = [{"role": "user", "content": "Begin."}]
    text = form.prompt(messages)
    for one in said:
        text += one
        messages.append({"role": "assistant", "content": one})
        follow = form.follow(text, messages, [answer])
        if follow.rewritten:
            return follow.rewritten
        text += follow.added
        messages.append(answer)
    return ""


def text_of(message: Message) -> str:
    """The content of a message as text: parts are joined."""
    content = message.get("content")
    if isinstance(content, list | tuple):
        parts = [p.get("text", "") if isinstance(p, Mapping) else str(p) for p in content]
        return "".join(str(part) for part in parts)
    return "" if content is None else str(content)


def _structured(message: Message) -> dict[str, Any]:
    """The model's message with its calls apart, where it has any."""
    calls = message.get("raw_calls")
    if not calls:
        return dict(message)
    return {"role": "assistant", "content": calls["content"], "tool_calls": calls["tool_calls"]}


def _squash(text: str) -> str:
    return _SPACE.sub("", text)


def _difference(expected: str, found: str) -> str:
    """Where two renderings part, spaces apart."""
    one, other = _squash(expected), _squash(found)
    at = next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    start = max(at - 10, 0)
    had, has = one[start : at + _SHOWN], other[start : at + _SHOWN]
    return f"what stood as {had!r} is written as {has!r} now"
