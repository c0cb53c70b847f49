"""From a dataset row to the exact tokens of a prompt."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlframe.errors import ConfigError, DataError, ModelError, unknown_name

if TYPE_CHECKING:
    from rlframe.config import DataConfig

__all__ = ["check_columns", "encode_prompt", "limit_prompt", "prompt_tokens"]

_NAMED = ("auto", "chat", "plain")


def encode_prompt(
    columns: Mapping[str, Any], tokenizer: Any, config: DataConfig, *, source: str = ""
) -> tuple[int, ...] | None:
    """The prompt's tokens, at least 1 and at most ``max_prompt_tokens``; None when it is dropped.

    Text is tokenised as it stands, a list of chat messages goes through the tokenizer's template;
    ``data.template`` changes that. ``source`` is "file:line" for messages. Raises DataError for a
    bad row, ModelError when the tokenizer has no chat template.
    """
    return limit_prompt(prompt_tokens(columns, tokenizer, config, source=source), config, source)


def prompt_tokens(
    columns: Mapping[str, Any], tokenizer: Any, config: DataConfig, *, source: str = ""
) -> tuple[int, ...]:
    """The prompt's tokens, however many."""
    prompt = prompt_of(columns, config, source)
    if isinstance(prompt, str):
        if config.template == "chat":
            ids = _chat([{"role": "user", "content": prompt}], tokenizer, source)
        else:
            ids = _text(prompt, tokenizer, source)
    elif config.template == "plain":
        raise DataError(
            f"{_at(source)}'{config.prompt_key}' holds chat messages but data.template=plain takes "
            "text: set data.template=chat"
        )
    else:
        ids = _chat(_messages(prompt, config.prompt_key, source), tokenizer, source)
    if not ids:
        raise DataError(f"{_at(source)}the prompt has no tokens")
    return tuple(ids)


def limit_prompt(
    ids: tuple[int, ...], config: DataConfig, source: str = ""
) -> tuple[int, ...] | None:
    """Apply ``data.over_long``: the ids, cut ids, or None for a dropped prompt."""
    limit = config.max_prompt_tokens
    if len(ids) <= limit:
        return ids
    if config.over_long == "drop":
        return None
    if config.over_long == "truncate-left":
        return ids[-limit:]
    if config.over_long == "truncate-right":
        return ids[:limit]
    raise DataError(
        f"{_at(source)}the prompt has {len(ids)} tokens, data.max_prompt_tokens is {limit}: raise "
        "it, or set data.over_long to drop or truncate-left"
    )


def prompt_of(columns: Mapping[str, Any], config: DataConfig, source: str = "") -> Any:
    """What is asked: text, or chat messages. Raises DataError when its column is not there."""
    if config.template not in _NAMED:
        return _fill(config.template, columns, source)
    key = config.prompt_key
    if key not in columns:
        hint = unknown_name("column", key, columns)
        raise DataError(f"{_at(source)}{hint} Set data.prompt_key to the column of the prompt.")
    prompt = columns[key]
    if not isinstance(prompt, str | list | tuple):
        kind = type(prompt).__name__
        raise DataError(f"{_at(source)}'{key}' is {kind}, not text or a list of chat messages")
    return prompt


def check_columns(columns: Mapping[str, Any], config: DataConfig, source: str = "") -> None:
    """Check a row against ``prompt_key`` and ``template``; needs no tokenizer. Raises DataError."""
    prompt = prompt_of(columns, config, source)
    if not isinstance(prompt, str):
        _messages(prompt, config.prompt_key, source)


def _fill(template: str, columns: Mapping[str, Any], source: str) -> str:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigError(
            f"data.template {template!r}: {error}; write {{{{ and }}}} for braces"
        ) from error
    if not names:
        raise ConfigError(
            f"data.template {template!r} is none of {', '.join(_NAMED)} and names no {{column}}"
        )
    for name in names:
        if name not in columns:
            hint = unknown_name("column", name, columns)
            raise DataError(f"{_at(source)}data.template {template!r}: {hint}")
    try:
        return template.format_map(columns)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{_at(source)}data.template {template!r}: {error}") from error


def _messages(prompt: Any, key: str, source: str) -> list[dict[str, Any]]:
    if not prompt:
        raise DataError(f"{_at(source)}'{key}' has no messages")
    for number, message in enumerate(prompt):
        good = isinstance(message, Mapping) and isinstance(message.get("role"), str)
        if not good or "content" not in message:
            raise DataError(
                f"{_at(source)}message {number} of '{key}' is {message!r}: it must have 'role' and "
                "'content'"
            )
    if prompt[-1]["role"] == "assistant":
        raise DataError(
            f"{_at(source)}the last message of '{key}' is the assistant's: a prompt ends with what "
            "the model is to answer"
        )
    # Tables give every message every key; one that is null was not written.
    kept = ("role", "content")
    return [{k: v for k, v in m.items() if k in kept or v is not None} for m in prompt]


def _text(text: str, tokenizer: Any, source: str) -> list[int]:
    """Tokens of plain text with the tokenizer's opening special tokens, never its closing one."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{_at(source)}the prompt is no text: half of a letter at position {error.start} "
            f"({text[error.start]!r})"
        ) from error
    ids = list(tokenizer(text)["input_ids"])
    eos = tokenizer.eos_token_id
    if eos is not None and ids[-1:] == [eos]:
        bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if bare[-1:] != [eos]:
            ids.pop()
    return ids


def _chat(messages: list[dict[str, Any]], tokenizer: Any, source: str) -> list[int]:
    from jinja2 import TemplateError

    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"{_at(source)}the prompt needs a chat template and the tokenizer has none: give text "
            "prompts with data.template=plain, or a model with a chat template"
        )
    try:
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except (TemplateError, TypeError, KeyError, UnicodeError) as error:
        raise DataError(f"{_at(source)}the chat template refused the prompt: {error}") from error
    return list(ids)


def _at(source: str) -> str:
    return f"{source}: " if source else ""
