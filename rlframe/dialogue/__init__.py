"""Conversations as exact tokens: what was said stays as it was sampled, only news is encoded."""

from __future__ import annotations

from rlframe.dialogue.dialogue import Dialogue, RewrittenError
from rlframe.dialogue.forms import (
    ChatForm,
    Follow,
    Form,
    Message,
    PlainForm,
    first_rewrite,
    form_of,
    text_of,
)

__all__ = [
    "ChatForm",
    "Dialogue",
    "Follow",
    "Form",
    "Message",
    "PlainForm",
    "RewrittenError",
    "first_rewrite",
    "form_of",
    "text_of",
]
