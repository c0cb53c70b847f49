"""What all episodes of an environment share: forms, tools, parser, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlframe.data import stop_token_ids
from rlframe.dialogue import ChatForm, Dialogue, Form, Message, first_rewrite, form_of
from rlframe.errors import ConfigError, ModelError, RolloutError
from rlframe.requests import Request, Row
from rlframe_plugins.envs.tools.config import ToolsConfig
from rlframe_plugins.parsers.choose import choose_parser

__all__ = ["Settings", "messages_of"]

_UNKNOWN = 10**9
"""What tokenizers say that know no limit is above this."""
_PLAIN = ("first things first", "and then the others")
_THINKING = (
    "<think>\nso it is\n</think>\n\nfirst things first",
    "<think>\nor not\n</think>\n\nand",
)


class Settings:
    """Made once; checks the chat template against the conversations that will be held.

    Raises ConfigError where it rewrites history and ``on_rewrite`` is ``error``, PluginError for an
    unknown parser, ModelError for ``template=chat`` without a template.
    """

    def __init__(
        self, config: ToolsConfig, tokenizer: Any, tools: Sequence[Mapping[str, Any]], name: str
    ) -> None:
        self.config, self.tokenizer, self.tools, self.name = config, tokenizer, list(tools), name
        self.by_name = {tool["function"]["name"]: tool for tool in tools}
        template = getattr(tokenizer, "chat_template", None)
        self.parser = choose_parser(config.tool_parser, template)
        self.ends = frozenset(stop_token_ids(tokenizer))
        longest = int(tokenizer.model_max_length)
        self.limit = config.max_tokens or (longest if longest < _UNKNOWN else 0)
        self.form = self.form_with(tools if config.describe else ())
        self._told = True  # plain messages stand as they are, with nothing before them
        if self.tools and config.describe and isinstance(self.form, ChatForm):
            self._told = self.form.tells_of_tools([{"role": "user", "content": "Begin."}])
        self.tool_role = self._check_template(template)

    def form_with(self, tools: Sequence[Mapping[str, Any]]) -> Form:
        """The form of messages that tells of these tools, where it can."""
        return form_of(self.tokenizer, tools, self.config.template)

    def dialogue(
        self, form: Form, messages: Sequence[Message], prompt_ids: Sequence[int] | None = None
    ) -> Dialogue:
        """A new conversation."""
        quoted = [form.quoted(message) for message in messages]
        return Dialogue(
            form,
            quoted,
            ends=self.ends,
            on_rewrite=self.config.on_rewrite,
            prompt_ids=prompt_ids,
        )

    def begin(self, row: Row, first: Sequence[Message] | None) -> Dialogue:
        """The conversation of an episode: the first messages, or those of the row."""
        if first is None:
            if not isinstance(self.form, ChatForm):
                return self.dialogue(self.form, (), row.prompt_ids)
            prompt = row.columns.get("prompt", "")
            first = messages_of(prompt, self.name)
        messages = list(first)
        if self.tools and self.config.describe and not self._told:
            text = self.parser.describe(self.tools)
            if messages and messages[0]["role"] == "system":
                text = f"{messages.pop(0)['content']}\n\n{text}"
            messages.insert(0, {"role": "system", "content": text})
        return self.dialogue(self.form, messages)

    def room(self, dialogue: Dialogue, request: Request) -> int:
        """Tokens that the next turn may have; 0 or less: none."""
        most = request.sampling.max_new_tokens
        return most if not self.limit else min(most, self.limit - len(dialogue.context))

    def _check_template(self, template: Any) -> str:
        """The role under which the template takes answers of tools."""
        if not isinstance(self.form, ChatForm):
            return "tool"
        role, found = "tool", ""
        try:
            found = first_rewrite(self.form, {"role": role, "content": "42"}, _PLAIN)
        except ModelError:
            role = "user"
            found = first_rewrite(self.form, {"role": role, "content": "42"}, _PLAIN)
        if not found and "</think>" in str(template):
            found = first_rewrite(self.form, {"role": role, "content": "42"}, _THINKING)
        if found and self.config.on_rewrite == "error":
            raise ConfigError(
                f"env.on_rewrite=error: the chat template rewrites history: {found}. With "
                "env.on_rewrite=segment every such turn begins a new training row"
            )
        return role


def messages_of(value: Any, name: str) -> list[Message]:
    """A text as the user's message, or messages as they are. Raises RolloutError."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, Mapping):
        value = [value]
    good = isinstance(value, list | tuple) and all(
        isinstance(m, Mapping) and isinstance(m.get("role"), str) and "content" in m for m in value
    )
    if not good or not value:
        shown = repr(value)[:200]
        raise RolloutError(f"env {name} gave {shown}: give text, or messages with role and content")
    return [dict(message) for message in value]
