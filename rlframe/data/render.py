"""A prompt and its response as the tokens of another model: its own template, its own tokenizer."""

from __future__ import annotations

from typing import Any

from rlframe.errors import DataError

__all__ = ["conversation_tokens", "same_tokens"]


def conversation_tokens(prompt: Any, response: str, tokenizer: Any) -> list[int]:
    """Tokens of a whole conversation that ends with the response.

    ``prompt`` is text or a list of chat messages. With a chat template a text is the user's
    message; without one the text is followed by the response and the end token, as an offline
    method is trained on it. Raises DataError for messages without a template, or that it refuses.
    """
    if getattr(tokenizer, "chat_template", None):
        return _chat(prompt, response, tokenizer)
    if not isinstance(prompt, str):
        raise DataError(
            "the score model's tokenizer has no chat template and the prompt is a list of chat "
            "messages: give text prompts, or a score model with a template"
        )
    ids = list(tokenizer(prompt)["input_ids"])
    end = tokenizer.eos_token_id
    if end is not None and ids[-1:] == [end]:
        ids.pop()
    ids += tokenizer(response, add_special_tokens=False)["input_ids"]
    return ids if end is None or ids[-1:] == [end] else [*ids, int(end)]


def same_tokens(one: Any, other: Any) -> bool:
    """Whether two tokenizers write a conversation alike: equal vocabulary and chat template."""
    templates = (getattr(t, "chat_template", None) for t in (one, other))
    return len(set(map(str, templates))) == 1 and one.get_vocab() == other.get_vocab()


def _chat(prompt: Any, response: str, tokenizer: Any) -> list[int]:
    from jinja2 import TemplateError

    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    messages.append({"role": "assistant", "content": response})
    try:
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    except (TemplateError, TypeError, KeyError) as error:
        raise DataError(f"the score model's chat template refused a prompt: {error}") from error
    return list(ids)
