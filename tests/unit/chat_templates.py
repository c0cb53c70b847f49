"""Chat templates as they are met, each with the special tokens that it is written for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlframe_templates.make_tiny import _byte_names

CHATML = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{- '<|begin_of_text|>' }}"
    "{% for m in messages %}"
    "{% set role = 'ipython' if m.role == 'tool' else m.role %}"
    "{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}"
    "{{- m.content | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{- '<s>' }}{% set ns = namespace(user=true) %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}{{- '[INST] ' + m.content + '[/INST]' }}"
    "{% elif m.role == 'assistant' %}{{- ' ' + m.content + '</s>' }}"
    "{% else %}{{ raise_exception('only user and assistant roles are supported') }}"
    "{% endif %}{% endfor %}"
)
NO_LAST_END = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ m.content }}{% if not loop.last %}</s>{% endif %}"
    "{% else %}[{{ m.role }}]{{ m.content }}[/]{% endif %}"
    "{% endfor %}"
)
STRIPS_THINKING = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}"
    "{% set text = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in text and loop.index0 < ns.last %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALWAYS_STRIPS = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}"
    "<a>{{ m.content.split('</think>')[-1] | trim }}</a>"
    "{% else %}<u>{{ m.content }}</u>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
MERGES = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}<a>{{ m.content }}</a>{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}{% if m.role != 'assistant' %}<u>{{ m.content }}</u>{% endif %}"
    "{% endfor %}<a>"
)


@dataclass(frozen=True)
class Template:
    """A template, its special tokens (the first ends a message), the roles that it takes."""

    text: str
    special: tuple[str, ...]
    roles: tuple[str, ...] = ("user", "tool")
    exact: bool = True
    """Whether writing a whole conversation anew gives the very same tokens."""


TEMPLATES = {
    "chatml": Template(CHATML, ("<|im_end|>", "<|im_start|>")),
    "llama3": Template(
        LLAMA3,
        ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        exact=False,
    ),
    "mistral": Template(MISTRAL, ("</s>", "<s>", "[INST]", "[/INST]"), ("user",), exact=False),
    "no-last-end": Template(NO_LAST_END, ("</s>",)),
}
"""Those that keep history."""

REWRITING = {
    "strips-thinking": Template(STRIPS_THINKING, ("<|im_end|>", "<|im_start|>")),
    "always-strips": Template(ALWAYS_STRIPS, ("</a>", "<a>", "<u>", "</u>")),
    "merges": Template(MERGES, ("</a>", "<a>", "<u>", "</u>")),
}


def byte_tokenizer(folder: Path, template: Template | None) -> Any:
    """One token a byte after the special ones, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = template.special if template else ("</s>",)
    names = ("<pad>", *special, *_byte_names())
    tokenizer = Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token=special[0],
        additional_special_tokens=list(special[1:]),
        clean_up_tokenization_spaces=False,
        chat_template=template.text if template else None,
    )
