from __future__ import annotations

from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rlframe.config import DataConfig
from rlframe.data import check_columns, encode_prompt, stop_token_ids
from rlframe.errors import ConfigError, DataError, ModelError

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tokenizer(post: str = "$A", chat: str | None = CHAT) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=post, special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = chat
    return fast


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def config(**options) -> DataConfig:
    return DataConfig(train="x:y", **options)


def test_text_is_tokenised_as_it_stands(tokenizer):
    ids = encode_prompt({"prompt": "1+1="}, tokenizer, config())
    assert tokenizer.decode(ids) == "1+1="
    assert len(ids) == 4


def test_an_opening_token_stays_and_a_closing_one_goes():
    ids = encode_prompt({"prompt": "ab"}, make_tokenizer("<s> $A </s>"), config())
    assert ids[0] == 0
    assert len(ids) == 3
    assert 1 not in ids


def test_an_end_that_was_written_in_the_prompt_stays():
    ids = encode_prompt({"prompt": "ab</s>"}, make_tokenizer(), config())
    assert ids[-1] == 1


def test_messages_go_through_the_chat_template(tokenizer):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hé"}]
    ids = encode_prompt({"q": messages}, tokenizer, config(prompt_key="q"))
    assert tokenizer.decode(ids) == "<system>s<user>hé<assistant>"


def test_text_is_one_user_message_when_chat_is_asked_for(tokenizer):
    ids = encode_prompt({"prompt": "hi"}, tokenizer, config(template="chat"))
    assert tokenizer.decode(ids) == "<user>hi<assistant>"


def test_a_template_is_filled_from_columns(tokenizer):
    options = config(template="Q: {question} ({n}) {{x}}\nA:", prompt_key="no such column")
    ids = encode_prompt({"question": "2+2?", "n": 3}, tokenizer, options)
    assert tokenizer.decode(ids) == "Q: 2+2? (3) {x}\nA:"


@pytest.mark.parametrize(
    ("over_long", "wanted"), [("drop", None), ("truncate-left", "cde"), ("truncate-right", "abc")]
)
def test_over_long_prompts(tokenizer, over_long, wanted):
    options = config(max_prompt_tokens=3, over_long=over_long)
    ids = encode_prompt({"prompt": "abcde"}, tokenizer, options)
    assert (ids if ids is None else tokenizer.decode(ids)) == wanted
    assert len(encode_prompt({"prompt": "abc"}, tokenizer, options)) == 3


def test_an_over_long_prompt_is_an_error_that_says_what_to_change(tokenizer):
    with pytest.raises(DataError, match=r"a\.jsonl:7: .* 5 tokens.*max_prompt_tokens is 3"):
        encode_prompt(
            {"prompt": "abcde"}, tokenizer, config(max_prompt_tokens=3), source="a.jsonl:7"
        )


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"promt": "x"}, {}, r"unknown column 'prompt'.*Did you mean 'promt'.*data.prompt_key"),
        ({"prompt": 3}, {}, "'prompt' is int, not text"),
        ({"prompt": None}, {}, "'prompt' is NoneType"),
        ({"prompt": ""}, {}, "no tokens"),
        ({"prompt": []}, {}, "no messages"),
        ({"prompt": ["hi"]}, {}, "message 0 .* must have 'role' and 'content'"),
        ({"prompt": [{"role": "user"}]}, {}, "must have 'role' and 'content'"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, {}, "is the assistant's"),
        ({"prompt": [{"role": "user", "content": "x"}]}, {"template": "plain"}, "template=chat"),
        ({"prompt": "x"}, {"template": "Q: {qestion}"}, "unknown column 'qestion'"),
    ],
)
def test_a_bad_row_is_named(tokenizer, columns, options, message):
    with pytest.raises(DataError, match=rf"^f\.jsonl:2: .*{message}"):
        encode_prompt(columns, tokenizer, config(**options), source="f.jsonl:2")


@pytest.mark.parametrize("template", ["autoo", "{", "a {0"])
def test_a_template_without_a_column_is_a_config_error(tokenizer, template):
    with pytest.raises(ConfigError, match=r"data\.template"):
        encode_prompt({"prompt": "x"}, tokenizer, config(template=template))


def test_a_tokenizer_without_chat_template_is_named():
    tokenizer = make_tokenizer(chat=None)
    with pytest.raises(ModelError, match="no.*chat template|chat template and the tokenizer"):
        encode_prompt({"prompt": [{"role": "user", "content": "x"}]}, tokenizer, config())


def test_a_template_that_refuses_is_a_data_error():
    tokenizer = make_tokenizer(chat="{{ raise_exception('only user turns') }}")
    with pytest.raises(DataError, match=r"f:1: .*only user turns"):
        encode_prompt({"prompt": "x"}, tokenizer, config(template="chat"), source="f:1")


def test_columns_can_be_checked_before_a_tokenizer_is_loaded():
    check_columns({"prompt": [{"role": "user", "content": "x"}]}, config())
    with pytest.raises(DataError, match="question"):
        check_columns({"question": "x"}, config())


def test_every_end_token_stops():
    tokenizer = SimpleNamespace(eos_token_id=5, pad_token_id=5)
    generation = SimpleNamespace(eos_token_id=[7, 5, 2])
    model = SimpleNamespace(eos_token_id=3)
    assert stop_token_ids(tokenizer, model, generation, None) == (2, 3, 5, 7)
    assert stop_token_ids(SimpleNamespace(eos_token_id=None), SimpleNamespace()) == ()
    assert stop_token_ids(SimpleNamespace(eos_token_id=0)) == (0,)
    with pytest.raises(ModelError, match="eos_token_id"):
        stop_token_ids(SimpleNamespace(eos_token_id="</s>"))
