"""Known families' templates: each token where it was sampled, or a refusal that explains itself."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlframe.dialogue import Dialogue, RewrittenError, form_of
from rlframe.errors import ModelError
from rlframe.requests import Completion
from tests.unit.chat_families import FAMILIES
from tests.unit.chat_templates import byte_tokenizer

FEW = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
TEXT = st.one_of(
    st.text("ab \n<>/é", max_size=8),
    st.sampled_from(
        ["", " ", "\n\n", "<think>\nwhy\n</think>\n\nso", "why\n</think>\n\nso", "</think>",
         "<think>", "<tool_call>\n{}\n</tool_call>", "<|im_end|>", "[/INST]", "a\n\nb "]
    ),
)  # fmt: skip
TURNS = st.lists(
    st.tuples(TEXT, st.lists(TEXT, min_size=1, max_size=2), st.booleans(), st.booleans()),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    return {
        name: byte_tokenizer(tmp_path_factory.mktemp(name), one) for name, one in FAMILIES.items()
    }


def sampled(tokenizer, text, end):
    ids = list(tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
    ids += [tokenizer.eos_token_id] if end or not ids else []
    return Completion(tuple(ids), tuple(-0.1 * n for n in range(len(ids))), (4,) * len(ids), "stop")


def begin(tokenizer, system, first, on_rewrite="segment"):
    form = form_of(tokenizer)
    messages = [{"role": "user", "content": first}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    ends, quoted = (tokenizer.eos_token_id,), [form.quoted(one) for one in messages]
    return Dialogue(form, quoted, ends=ends, on_rewrite=on_rewrite)


def hold(dialogue, tokenizer, turns, roles):
    """Play; what was asked and answered. A rewritten context is what the template writes."""
    asked = []
    for said, answers, end, as_tool in turns:
        before = dialogue.context
        done = sampled(tokenizer, said, end)
        dialogue.heard(done)
        asked.append((before, done))
        role = roles[-1] if as_tool else roles[0]
        count, new = dialogue.rewrites, answers if role == "tool" else answers[:1]
        dialogue.say([dialogue.form.quoted({"role": role, "content": one}) for one in new])
        if dialogue.rewrites == count:
            whole = before + done.token_ids
            assert dialogue.context[: len(whole)] == whole
        else:
            whole = dialogue.form.encode(dialogue.form.prompt(dialogue.messages))
            assert list(dialogue.context) == whole
    return asked


def check(dialogue, asked):
    """Each answer is a stretch of some row, right after what it was asked with; no other is."""
    rows = {}
    for number, segment in enumerate(dialogue.all_segments()):
        count = len(segment.prompt_ids)
        for n, mask in enumerate(segment.response_mask):
            if mask:
                rows[number, count + n] = (segment.response_ids[n], segment.logprobs[n])
            else:
                assert (segment.logprobs[n], segment.versions[n]) == (0.0, -1)
    number = 0
    wholes = [(*s.prompt_ids, *s.response_ids) for s in dialogue.all_segments()]
    for before, done in asked:
        whole = before + done.token_ids
        while wholes[number][: len(whole)] != whole:
            number += 1
        for n, token in enumerate(done.token_ids):
            assert rows.pop((number, len(before) + n)) == (token, done.logprobs[n])
    assert not rows


@pytest.mark.parametrize("name", sorted(FAMILIES))
@FEW
@given(system=st.none() | TEXT, first=TEXT, turns=TURNS)
def test_tokens_and_masks_are_exact(name, tokenizers, system, first, turns):
    tokenizer, roles = tokenizers[name], FAMILIES[name].roles
    if name == "gemma" and system is not None:
        with pytest.raises(ModelError, match="System role not supported"):
            begin(tokenizer, system, first)
        return
    dialogue = begin(tokenizer, system, first)
    check(dialogue, hold(dialogue, tokenizer, turns, roles))


@pytest.mark.parametrize("name", sorted(FAMILIES))
@FEW
@given(system=st.none() | TEXT, first=TEXT, turns=TURNS)
def test_with_error_nothing_is_rewritten_in_silence(name, tokenizers, system, first, turns):
    """The same conversation is either one row, or refused with what the template did to it."""
    tokenizer, roles = tokenizers[name], FAMILIES[name].roles
    system = None if name == "gemma" else system
    bridged = begin(tokenizer, system, first)
    hold(bridged, tokenizer, turns, roles)
    strict = begin(tokenizer, system, first, on_rewrite="error")
    refused = pytest.raises(RewrittenError, match="rewrites history: what stood as")
    with refused if bridged.rewrites else contextlib.nullcontext():
        hold(strict, tokenizer, turns, roles)
    if not bridged.rewrites:
        assert len(strict.all_segments()) == 1
        assert strict.context == bridged.context


PLAIN = [("so it is", ["go on"], True, False), ("and so", ["more"], True, True)]


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"qwen3", "deepseek"}))
def test_a_plain_conversation_is_one_row(name, tokenizers):
    """deepseek opens with thinking and leaves it out later; qwen3 puts empty thinking in."""
    dialogue = begin(tokenizers[name], None, "begin")
    hold(dialogue, tokenizers[name], PLAIN, FAMILIES[name].roles)
    assert (dialogue.rewrites, len(dialogue.all_segments())) == (0, 1)


def test_qwen3_drops_thinking_at_the_next_user_alone(tokenizers):
    thought = "<think>\nwhy\n</think>\n\nso"
    dialogue = begin(tokenizers["qwen3"], None, "begin")
    hold(dialogue, tokenizers["qwen3"], [(thought, ["42", "43"], True, True)], ("user", "tool"))
    assert dialogue.rewrites == 0
    hold(dialogue, tokenizers["qwen3"], [(thought, ["next"], True, False)], ("user", "tool"))
    assert dialogue.rewrites == 1


def test_mistral_moves_the_system_message_and_is_noticed(tokenizers):
    dialogue = begin(tokenizers["mistral-system"], "be good", "begin")
    hold(dialogue, tokenizers["mistral-system"], PLAIN, ("user",))
    assert dialogue.rewrites == 2
