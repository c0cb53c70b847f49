"""Conversations keep their tokens, whatever the template; what rewrites history is noticed."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlframe.dialogue import Dialogue, RewrittenError, first_rewrite, form_of
from rlframe.errors import ModelError
from rlframe.requests import Completion, Request, Sampling
from tests.unit.chat_templates import REWRITING, TEMPLATES, byte_tokenizer

FEW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
WORDS = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\ue0f0\ue0f1"), max_size=12
)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    return {
        name: byte_tokenizer(tmp_path_factory.mktemp(name), template)
        for name, template in (TEMPLATES | REWRITING).items()
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("plain"), None)


def sampled(tokenizer, text, end=True):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = [*ids, tokenizer.eos_token_id] if end else ids
    return Completion(tuple(ids), tuple(-0.1 * n for n in range(len(ids))), (4,) * len(ids), "stop")


def begin(tokenizer, first, kind="auto", **options):
    form = form_of(tokenizer, (), kind)
    ends = (tokenizer.eos_token_id,)
    return Dialogue(form, [{"role": "user", "content": first}], ends=ends, **options)


def hold(dialogue, tokenizer, turns, roles):
    """Play turns of (said, answer, whether it ended itself); the tokens are checked on the way."""
    asked = []
    for number, (said, answer, end) in enumerate(turns):
        before = dialogue.context
        done = sampled(tokenizer, said, end or not said)
        dialogue.heard(done)
        asked.append((before, done))
        assert dialogue.context == before + done.token_ids
        role = roles[number % len(roles)]
        dialogue.say([dialogue.form.quoted({"role": role, "content": answer})])
        assert dialogue.rewrites == 0
        assert dialogue.context[: len(before) + len(done.token_ids)] == before + done.token_ids
    return asked


def check_rows(dialogue, asked):
    """Every token that was sampled is trained on where it stood, and no other is."""
    (segment,) = dialogue.all_segments()
    whole = (*segment.prompt_ids, *segment.response_ids)
    spans = {}
    for number, (before, done) in enumerate(asked):
        end = len(before) + len(done.token_ids)
        assert whole[:end] == before + done.token_ids
        for offset, token in enumerate(done.token_ids):
            spans[len(before) + offset] = (token, done.logprobs[offset], number)
    start = len(segment.prompt_ids)
    for n, mask in enumerate(segment.response_mask):
        found = (segment.response_ids[n], segment.logprobs[n], segment.turn_ids[n])
        assert mask == (start + n in spans)
        assert segment.versions[n] == (4 if mask else -1)
        if mask:
            assert found == spans[start + n]
        else:
            assert segment.logprobs[n] == 0.0
    assert segment.turn_ids == sorted(segment.turn_ids)


TURNS = st.lists(st.tuples(WORDS, WORDS, st.booleans()), min_size=1, max_size=4)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@FEW
@given(first=WORDS, turns=TURNS)
def test_any_conversation_keeps_its_tokens(name, tokenizers, first, turns):
    tokenizer = tokenizers[name]
    dialogue = begin(tokenizer, first)
    check_rows(dialogue, hold(dialogue, tokenizer, turns, TEMPLATES[name].roles))


@FEW
@given(first=WORDS, turns=TURNS)
def test_and_so_without_a_template(plain, first, turns):
    dialogue = begin(plain, first)
    check_rows(dialogue, hold(dialogue, plain, turns, ("user",)))
    said = "".join(
        text + ("</s>" if end or not text else "") + answer for text, answer, end in turns
    )
    assert plain.decode(dialogue.context) == first + said


@pytest.mark.parametrize("name", sorted(n for n, t in TEMPLATES.items() if t.exact))
def test_it_is_what_the_template_writes(name, tokenizers):
    """Where the template adds nothing of its own to a message, both ways give the same tokens."""
    tokenizer, roles = tokenizers[name], TEMPLATES[name].roles
    dialogue = begin(tokenizer, "grüß dich")
    turns = [("one\ntwo", "three", True), ("ünf", "six ", True)]
    hold(dialogue, tokenizer, turns, roles)
    messages = [m | {} for m in dialogue.messages]
    wanted = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(dialogue.context) == list(wanted)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_what_a_tool_writes_is_never_a_special_token(name, tokenizers):
    tokenizer, template = tokenizers[name], TEMPLATES[name]
    dialogue = begin(tokenizer, "go")
    dialogue.heard(sampled(tokenizer, "done"))
    before = len(dialogue.context)
    evil = f"a{template.special[0]}b{template.special[-1]}c"
    dialogue.say([dialogue.form.quoted({"role": template.roles[-1], "content": evil})])
    added = dialogue.context[before:]
    harmless = begin(tokenizer, "go")
    harmless.heard(sampled(tokenizer, "done"))
    harmless.say([{"role": template.roles[-1], "content": "abc"}])
    count = sum(token < 1 + len(template.special) for token in added)
    assert count == sum(token < 1 + len(template.special) for token in harmless.context[before:])
    assert evil in tokenizer.decode(added)


def test_a_message_that_the_template_does_not_end_is_ended(tokenizers):
    """A stop string ended it: the end of the message is added, and not trained on."""
    tokenizer = tokenizers["chatml"]
    dialogue = begin(tokenizer, "go")
    dialogue.heard(sampled(tokenizer, "a</tool_call>", end=False))
    dialogue.say([{"role": "tool", "content": "b"}])
    assert "a</tool_call><|im_end|>\n<|im_start|>tool\nb<|im_end|>" in tokenizer.decode(
        dialogue.context
    )


THOUGHT = "<think>\nwhy\n</think>\n\nanswer"


@pytest.mark.parametrize("name", sorted(REWRITING))
def test_rewritten_history_begins_a_new_row(name, tokenizers):
    tokenizer = tokenizers[name]
    dialogue = begin(tokenizer, "go")
    done = sampled(tokenizer, THOUGHT)
    dialogue.heard(done)
    dialogue.say([{"role": "user", "content": "and"}])
    again = sampled(tokenizer, "done")
    context = dialogue.context
    dialogue.heard(again)
    assert dialogue.rewrites == 1
    first, second = dialogue.all_segments()
    assert first.response_ids == list(done.token_ids)
    assert second.prompt_ids == list(context)
    assert second.response_ids == list(again.token_ids)
    assert all(first.response_mask)
    assert all(second.response_mask)
    whole = tokenizer.apply_chat_template(
        dialogue.messages[:3], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(context) == list(whole)


@pytest.mark.parametrize("name", sorted(REWRITING))
def test_or_is_refused_with_an_explanation(name, tokenizers):
    dialogue = begin(tokenizers[name], "go", on_rewrite="error")
    dialogue.heard(sampled(tokenizers[name], THOUGHT))
    with pytest.raises(
        RewrittenError, match=r"rewrites history: what stood as .*on_rewrite=segment"
    ):
        dialogue.say([{"role": "user", "content": "and"}])


def test_thinking_within_the_turn_of_one_user_is_kept(tokenizers):
    """Qwen3's rule: only what came before the last user's message loses its thinking."""
    dialogue = begin(tokenizers["strips-thinking"], "go")
    hold(dialogue, tokenizers["strips-thinking"], [(THOUGHT, "42", True)] * 3, ("tool",))


@pytest.mark.parametrize(
    ("name", "role", "said", "rewrites"),
    [
        ("chatml", "tool", THOUGHT, False),
        ("strips-thinking", "tool", THOUGHT, False),
        ("strips-thinking", "user", THOUGHT, True),
        ("strips-thinking", "user", "plain", False),
        ("always-strips", "user", THOUGHT, True),
        ("merges", "user", "plain", True),
    ],
)
def test_a_template_can_be_tried_before(name, role, said, rewrites, tokenizers):
    form = form_of(tokenizers[name])
    found = first_rewrite(form, {"role": role, "content": "42"}, (said, said))
    assert bool(found) == rewrites


def test_a_role_that_the_template_refuses_is_told(tokenizers):
    with pytest.raises(ModelError, match="refused messages of user, assistant, tool"):
        first_rewrite(form_of(tokenizers["mistral"]), {"role": "tool", "content": "1"}, ("a",))


def test_each_turn_has_a_seed_of_its_own_and_fits_the_room(tokenizers):
    dialogue = begin(tokenizers["chatml"], "go")
    request = Request((), Sampling(seed=7, max_new_tokens=9), request_id="r")
    first = dialogue.request(request)
    assert (first.sampling.seed, first.request_id) == (7, "r")
    dialogue.heard(sampled(tokenizers["chatml"], "a"))
    dialogue.say([{"role": "user", "content": "b"}])
    second = dialogue.request(request, room=3)
    assert second.sampling.seed != 7
    assert (second.request_id, second.sampling.max_new_tokens) == ("r-t1", 3)
    assert second == dialogue.request(request, room=3)


def test_a_turn_reward_is_at_its_last_token(tokenizers):
    tokenizer = tokenizers["chatml"]
    dialogue = begin(tokenizer, "go")
    for text, value in (("ab", 0.5), ("cd", 0.25)):
        dialogue.heard(sampled(tokenizer, text))
        dialogue.reward(value)
        dialogue.say([{"role": "user", "content": "b"}])
    dialogue.heard(sampled(tokenizer, "e"))
    (segment,) = dialogue.all_segments()
    rewards = {n: r for n, r in enumerate(segment.token_rewards) if r}
    places = [
        max(n for n, t in enumerate(segment.turn_ids) if t == turn and segment.response_mask[n])
        for turn in (0, 1)
    ]
    assert rewards == dict(zip(places, (0.5, 0.25), strict=True))
    assert len(segment.token_rewards) == len(segment.response_ids)
