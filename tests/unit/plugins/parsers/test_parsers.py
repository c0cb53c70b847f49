"""Tool calls in every form; odd texts lose nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.errors import PluginError
from rlframe.host.host import PluginHost
from rlframe.host.resolve import resolve
from rlframe_plugins.parsers.choose import choose_parser
from rlframe_plugins.parsers.hermes import HermesParser
from rlframe_plugins.parsers.llama import LlamaParser
from rlframe_plugins.parsers.plain_json import JsonParser
from rlframe_plugins.parsers.qwen import QwenParser

HOST = PluginHost().load()
PARSERS = {n: resolve(HOST, "tool-parser", n).value() for n in HOST.components("tool-parser")}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["text"],
            },
        },
    }
]
CALL = ("find", {"text": 'a "b" </x> {', "count": 2})
BODY = json.dumps({"name": CALL[0], "arguments": CALL[1]})
XML = (
    '<tool_call>\n<function=find>\n<parameter=text>\na "b" </x> {\n</parameter>\n'
    "<parameter=count>\n2\n</parameter>\n</function>\n</tool_call>"
)


def calls(parser, text):
    parsed = parser.parse(text, TOOLS)
    assert parsed.text == text
    return [(call.name, dict(call.arguments)) for call in parsed.calls]


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (HermesParser, f"<tool_call>{BODY}</tool_call>"),
        (HermesParser, f"let me see\n<tool_call>\n{BODY}\n</tool_call>\n"),
        (HermesParser, f"<tool_call>{BODY}"),
        (QwenParser, f"<tool_call>{BODY}</tool_call>"),
        (QwenParser, XML),
        (QwenParser, XML.removesuffix("\n</tool_call>")),
        (LlamaParser, BODY),
        (LlamaParser, BODY.replace("arguments", "parameters")),
        (LlamaParser, f"<|python_tag|>{BODY}"),
        (LlamaParser, '<|python_tag|>find.call(text="a \\"b\\" </x> {", count=2)'),
        (LlamaParser, "[find('a \"b\" </x> {', 2)]"),
        (LlamaParser, " [find(count=2, text='a \"b\" </x> {')] "),
        (JsonParser, BODY),
        (JsonParser, f"so:\n```json\n{BODY}\n```"),
        (JsonParser, f"[{BODY}]"),
    ],
)
def test_a_call(parser, text):
    assert calls(parser(), text) == [CALL]


TWO = [("find", {"text": "a"}), ("find", {"text": "b"})]
A, B = (json.dumps({"name": "find", "arguments": {"text": t}}) for t in "ab")


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (HermesParser, f"<tool_call>{A}</tool_call>\n<tool_call>{B}</tool_call>"),
        (
            QwenParser,
            "x<tool_call><function=find><parameter=text>a</parameter></function></tool_call>"
            f"<tool_call>{B}</tool_call>",
        ),
        (LlamaParser, f"{A}; {B}"),
        (LlamaParser, f"<|python_tag|>{A}\n{B}"),
        (LlamaParser, "[find('a'), find(text='b')]"),
        (JsonParser, f"{A} and {B}"),
        (JsonParser, f"[{A}, {B}]"),
    ],
)
def test_several_calls_in_one_message(parser, text):
    assert calls(parser(), text) == TWO


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (HermesParser, '<tool_call>{"name": "find", </tool_call>'),
        (HermesParser, "<tool_call>find</tool_call>"),
        (HermesParser, '<tool_call>{"arguments": {}}</tool_call>'),
        (HermesParser, '<tool_call>{"name": "find", "arguments": [1]}</tool_call>'),
        (HermesParser, f"<tool_call>{A} {B}</tool_call>"),
        (QwenParser, "<tool_call><function=find><parameter=text>a"),
        (QwenParser, "<tool_call><function=find></tool_call>"),
        (LlamaParser, '{"name": "find", "parameters": {"text": "a"'),
        (LlamaParser, "[find('a', 2, 3)]"),
        (LlamaParser, "[find(text=open('x'))]"),
        (LlamaParser, "<|python_tag|>print(1"),
        (JsonParser, '{"name": "find", "arguments": {"text": "a"'),
    ],
)
def test_a_call_that_cannot_be_read_is_told_and_kept(parser, text):
    parsed = parser().parse(text, TOOLS)
    assert parsed.text == text
    assert parsed.faults
    assert parsed.calls == ()


def test_a_broken_call_does_not_hide_the_next_one():
    text = f'<tool_call>{{"name": </tool_call><tool_call>{A}</tool_call>'
    parsed = HermesParser().parse(text)
    assert (len(parsed.faults), calls(HermesParser(), text)) == (1, TWO[:1])
    text = f'<tool_call>{{"name": <tool_call>{A}</tool_call>'
    assert calls(HermesParser(), text) == TWO[:1]


@pytest.mark.parametrize("name", sorted(PARSERS))
@pytest.mark.parametrize("text", ["", "42", "The set {1, 2} is [a, b].", '{"a": 1}'])
def test_plain_text_is_no_call(name, text):
    parsed = PARSERS[name].parse(text, TOOLS)
    assert parsed.calls == ()
    assert parsed.text == text
    if name != "llama":  # a message that begins with a brace is meant as a call there
        assert not parsed.faults
        assert parsed.content == text


FRAGMENTS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>",
     "<|python_tag|>", "{", "}", "[", "]", '"', '"name"', ":", '"f"', '"arguments"', ",", "(", ")",
     "f(", "a=1", ";", "\n", " ", "é", A, "nan", "1e999", "\\", "\x00"]
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(PARSERS))
@settings(max_examples=150, deadline=None)
@given(parts=st.lists(FRAGMENTS, max_size=14))
def test_no_text_is_lost_and_none_is_too_odd(name, parts):
    text = "".join(parts)
    parsed = PARSERS[name].parse(text, TOOLS)
    assert parsed.text == text
    for call in parsed.calls:
        json.dumps(call.arguments)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_what_nests_deeply_is_no_crash(name):
    text = "<tool_call>" + "[" * 20_000
    assert PARSERS[name].parse(text).text == text
    assert PARSERS[name].parse("[f(" + "(" * 500).calls == ()


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("x <tool_call>\n{\"name\": <name>, \"arguments\": <args>}\n</tool_call>", HermesParser),
        ("<tool_call>\n<function=example>\n<parameter=p> \"name\"", QwenParser),
        ("<|start_header_id|> {\"name\": n, \"parameters\": d}", LlamaParser),
        ("nothing of the kind", JsonParser),
        (None, JsonParser),
        ({"default": "", "tool_use": "<tool_call> \"name\""}, HermesParser),
    ],
)  # fmt: skip
def test_the_template_says_which(template, parser):
    assert type(choose_parser("auto", template)) is parser


def test_or_the_user_does():
    assert type(choose_parser("llama", '<tool_call> "name"')) is LlamaParser
    with pytest.raises(PluginError, match="Did you mean 'hermes'"):
        choose_parser("herms", None)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_its_description_shows_the_tools_and_an_example(name):
    text = PARSERS[name].describe(TOOLS)
    assert '"find"' in text
    assert "NAME" in text
