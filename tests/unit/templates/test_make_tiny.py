"""The shipped model, and the start from which its recipe makes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import rlframe_templates
from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from rlframe.host.host import current_host
from rlframe_plugins.data.builtin import BuiltinDataset
from rlframe_templates import make_tiny as module
from rlframe_templates.make_tiny import RECIPE, main

SHIPPED = Path(rlframe_templates.__file__).parent / "models" / "tiny"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "start"
    assert main([str(folder), "--start"]) == 0
    return folder


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(SHIPPED)


def test_shipped_model_is_small_and_loads_no_code():
    files = {path.name: path.stat().st_size for path in SHIPPED.iterdir()}
    assert sum(files.values()) < 3 * 2**20
    assert set(files) == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    weights = load_file(SHIPPED / "model.safetensors")
    assert sum(w.numel() for w in weights.values()) < 1_000_000


def test_start_has_the_shipped_shapes_and_other_weights(start):
    first, last = (load_file(d / "model.safetensors") for d in (start, SHIPPED))
    assert {k: v.shape for k, v in first.items()} == {k: v.shape for k, v in last.items()}
    name = "model.layers.0.mlp.up_proj.weight"
    assert not first[name].equal(last[name])


def test_start_is_the_same_for_a_seed(start, tmp_path):
    main([str(tmp_path / "again"), "--start"])
    main([str(tmp_path / "other"), "--start", "--seed", "1"])
    files = [d / "model.safetensors" for d in (start, tmp_path / "again", tmp_path / "other")]
    first, again, other = (path.read_bytes() for path in files)
    assert first == again != other


def test_start_and_shipped_tokenizers_are_one(start, tokenizer):
    ours = AutoTokenizer.from_pretrained(start)
    assert ours.get_vocab() == tokenizer.get_vocab()
    assert ours.chat_template == tokenizer.chat_template
    text = "17+25=é\n<eos>日本"
    assert ours(text)["input_ids"] == tokenizer(text)["input_ids"]


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(max_codepoint=0x2FF, exclude_categories=["Cs"])))
def test_each_byte_is_a_token_and_text_comes_back(tokenizer, text):
    import unicodedata

    text = unicodedata.normalize("NFC", text)
    ids = tokenizer(text)["input_ids"]
    assert ids == [8 + byte for byte in text.encode()]
    assert tokenizer.decode(ids) == text


def test_special_tokens(tokenizer):
    config = json.loads((SHIPPED / "config.json").read_text())
    assert len(tokenizer) == config["vocab_size"] == 264
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert (config["pad_token_id"], config["eos_token_id"]) == (0, 1)
    assert tokenizer("1+1=<eos>")["input_ids"][-1] == 1
    assert tokenizer.decode([8 + ord("2"), 1], skip_special_tokens=True) == "2"


def test_chat_template(tokenizer):
    messages = [{"role": "system", "content": "add"}, {"role": "user", "content": "1+2="}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<system>add<eos><user>1+2=<eos><assistant>"
    with pytest.raises(Exception, match="unknown role robot"):
        tokenizer.apply_chat_template([{"role": "robot", "content": ""}], tokenize=False)


def test_greedy_accuracy_on_held_out_questions_leaves_room(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(SHIPPED).eval()
    held_out = BuiltinDataset.open("builtin:arithmetic?split=test&size=512")
    rows = [held_out[i] for i in range(len(held_out))]
    prompts = tokenizer([row["prompt"] for row in rows], padding=True, return_tensors="pt")
    tokens = model.generate(**prompts, max_new_tokens=5, do_sample=False)
    answers = tokenizer.batch_decode(
        tokens[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True
    )
    right = sum(a == row["answer"] for a, row in zip(answers, rows, strict=True))
    assert 0.3 < right / len(rows) < 0.6


def test_recipe_learns_on_other_questions_than_it_validates_on():
    config = load_config(current_host(), Asked([RECIPE], (), {"model": str(SHIPPED)})).config
    assert config.algo.name == "sft"
    assert "split=train" in config.data.train
    assert "split=test" in config.data.validate
    train = BuiltinDataset.open(config.data.train)
    assert len(train) == config.steps * config.data.prompts_per_step


SHORT = """\
algo: sft
steps: 1
data: {train: "builtin:arithmetic?split=train&size=8", validate: null, prompts_per_step: 8}
optim: {lr: 1.0e-3}
cluster: {threads: 1}
logger: [jsonl]
"""


def test_making_trains_and_replaces_a_model(start, tmp_path, monkeypatch):
    (tmp_path / "short.yaml").write_text(SHORT)
    monkeypatch.setattr(module, "RECIPE", tmp_path / "short.yaml")
    target = tmp_path / "model"
    target.mkdir()
    (target / "config.json").write_text("{}")
    (target / "old.bin").write_text("")
    assert main([str(target)]) == 0
    assert {p.name for p in target.iterdir()} == {p.name for p in SHIPPED.iterdir()}
    first, last = (load_file(d / "model.safetensors") for d in (start, target))
    assert first.keys() == last.keys()
    assert any(not first[name].equal(last[name]) for name in first)


def test_making_spares_a_folder_that_holds_no_model(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="holds no model"):
        main([str(tmp_path)])
    assert (tmp_path / "letter.txt").read_text() == "dear"
