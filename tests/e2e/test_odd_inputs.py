"""Odd data sets and reward functions: the right result, or one clear error. All by a real run."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import rlframe
from rlframe.errors import RewardError, RlframeError
from tests.e2e.small import make_model

GOOD = '{"prompt": "ab", "answer": "1"}\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@dataclasses.dataclass
class Seen:
    """What a reward was given, and the figures of the run's last step."""

    rows: list[dict]
    figures: dict


@pytest.fixture
def run(model, tmp_path):
    def run_once(data, reward=None, model=model, **options) -> Seen:
        rows: list[dict] = []

        def note(**columns):
            rows.append(columns)
            return 0.5

        fit = rlframe.fit(
            model=str(model),
            data=str(data),
            reward=reward or note,
            steps=1,
            rollout={"name": "torch", "max_new_tokens": 3},
            algo={"name": "grpo", "samples_per_prompt": 2, "kl_coef": 0.0},
            run={"dir": str(tmp_path / "runs"), "save_every": 0, "samples_every": 0},
            logger=["jsonl"],
            cluster={"name": "inline", "threads": 1},
            **{"data.prompts_per_step": 2, "data.shuffle": False, "data.max_refills": 1, **options},
        )
        last = (fit.run_dir / "metrics.jsonl").read_text().splitlines()[-1]
        return Seen(rows, json.loads(last))

    return run_once


@pytest.fixture
def write(tmp_path):
    def write_file(content: str | bytes, name: str = "x.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


# --- data sets that are odd and right -------------------------------------------------------------

RIGHT = {
    "byte-order mark": ("x.jsonl", b"\xef\xbb\xbf" + GOOD.encode(), {}, "ab"),
    "line ends of Windows": ("x.jsonl", GOOD.replace("\n", "\r\n"), {}, "ab"),
    "no line end at the end": ("x.jsonl", GOOD.strip(), {}, "ab"),
    "blank lines at the end": ("x.jsonl", GOOD + "\n\n", {}, "ab"),
    "other languages": ("x.jsonl", '{"prompt": "añ 日本 \\ud83d\\ude00"}\n', {}, "añ 日本 😀"),
    "control characters": ("x.jsonl", '{"prompt": "a\\u0000b\\u2028c"}\n', {}, "a\0b\u2028c"),
    "names with blanks and marks": ("my data? a=b.jsonl", GOOD, {}, "ab"),
    "a nested prompt": (
        "x.jsonl",
        '{"q": {"text": "abc"}}\n',
        {"data.columns": {"prompt": "q.text"}},
        "abc",
    ),
    "another prompt column": (
        "x.jsonl",
        '{"prompt": "no", "question": "yes"}\n',
        {"data.prompt_key": "question"},
        "yes",
    ),
    "a template": ("x.jsonl", '{"a": 1, "b": [2]}\n', {"data.template": "{a}b{b}"}, "1b[2]"),
    "a table": ("x.csv", 'prompt,answer\n"a\nb",1\n', {}, "a\nb"),
    "a table of tabs": ("x.tsv", "prompt\tanswer\nab\t1\n", {}, "ab"),
    "another delimiter": ("x.csv?delimiter=semicolon", "prompt;answer\nab;1\n", {}, "ab"),
    "keys that are no names": ("x.jsonl", '{"prompt": "ab", "class": 1, "a b": 2}\n', {}, "ab"),
    "a key twice": ("x.jsonl", '{"prompt": "no", "prompt": "yes"}\n', {}, "yes"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_odd_but_right(run, write, name):
    file, content, options, prompt = RIGHT[name]
    path = write(content, file.partition("?delimiter")[0])
    data = f"{path}?delimiter=semicolon" if "?delimiter" in file else path
    seen = run(data, **options)
    assert [row["prompt"] for row in seen.rows] == [prompt] * 4
    assert seen.figures["critic/rewards/mean"] == 0.5


def test_columns_with_the_names_of_arguments(run, write):
    """An argument is the model's response and the real prompt, whatever the data has."""
    path = write('{"prompt": "ab", "response": "its", "response_ids": 3, "finish_reason": 4}\n')
    seen = run(path, **{"data.columns": {"reference": "response"}})
    assert all(row["reference"] == "its" for row in seen.rows)
    assert all(isinstance(row["response_ids"], list) for row in seen.rows)
    assert all(row["finish_reason"] in ("stop", "length") for row in seen.rows)
    assert all(row["response"] != "its" for row in seen.rows)

    def group(responses, prompts):
        assert prompts == ["ab", "ab"]
        return [len(r) for r in responses]

    clash = write('{"prompt": "ab", "responses": ["a"], "prompts": 5}\n')
    assert run(clash, group).figures["critic/rewards/mean"] > 0


def test_rows_of_verl(run, write):
    row = {
        "data_source": "sums",
        "prompt": "ab",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 0, "split": "train"},
    }
    path = write(json.dumps(row) + "\n")
    assert run(path, "exact").figures["reward/exact/mean"] == 0.0

    def reward(response, data_source, ground_truth, extra_info):
        return float((data_source, ground_truth, extra_info["index"]) == ("sums", "4", 0))

    alias = {"data.columns": {"ground_truth": "reward_model.ground_truth"}}
    assert run(path, reward, **alias).figures["critic/rewards/mean"] == 1.0
    with pytest.raises(RewardError, match=r"data\.columns\.ground_truth=reward_model\.ground_tr"):
        run(path, reward)


def test_long_prompts_are_dropped_or_cut_and_counted(run, write):
    rows = [{"prompt": text} for text in ("ab", "c" * 50_000, "de")]
    path = write("".join(json.dumps(row) + "\n" for row in rows))
    short = {"data.max_prompt_tokens": 8}
    seen = run(path, **short, **{"data.over_long": "drop"})
    assert {row["prompt"] for row in seen.rows} == {"ab", "de"}
    assert seen.figures["data/dropped_prompts"] == 1
    seen = run(path, **short, **{"data.over_long": "truncate-left"})
    assert max(len(row["prompt_ids"]) for row in seen.rows) == 8
    assert seen.figures["data/truncated_prompts"] == 1
    assert seen.figures["data/dropped_prompts"] == 0


# --- data sets that are wrong ---------------------------------------------------------------------

WRONG = {
    "latin-1": (
        "x.jsonl",
        GOOD.encode() + '{"prompt": "ä"}'.encode("latin-1"),
        {},
        ":2: not UTF-8",
    ),
    "utf-16": ("x.jsonl", GOOD.encode("utf-16"), {}, ":1: not UTF-8"),
    "gzip": ("x.jsonl", b"\x1f\x8b\x08\x00\x00", {}, ":1: not UTF-8"),
    "an empty line": ("x.jsonl", GOOD + "\n" + GOOD, {}, ":2: the line is empty"),
    "cut off": ("x.jsonl", GOOD + '{"prompt": "a', {}, "cut off"),
    "an empty file": ("x.jsonl", "", {}, "has no rows"),
    "one array": ("x.jsonl", '[{"prompt": "a"}]\n', {}, ":1: the line is not an object"),
    "a number": ("x.jsonl", '{"prompt": 3}\n', {}, "x.jsonl:1: 'prompt' is int, not text"),
    "null": ("x.jsonl", '{"prompt": null}\n', {}, ":1: 'prompt' is NoneType"),
    "no text": ("x.jsonl", '{"prompt": ""}\n', {}, ":1: the prompt has no tokens"),
    "half a letter": ("x.jsonl", '{"prompt": "a\\ud800"}\n', {}, ":1: the prompt is no text"),
    "no prompt": ("x.jsonl", '{"promt": "a"}\n', {}, "Did you mean 'promt'"),
    "no messages": ("x.jsonl", '{"prompt": []}\n', {}, "'prompt' has no messages"),
    "bad messages": ("x.jsonl", '{"prompt": [{"text": "a"}]}\n', {}, "must have 'role'"),
    "an answered prompt": (
        "x.jsonl",
        '{"prompt": [{"role": "assistant", "content": "a"}]}\n',
        {},
        "is the assistant's",
    ),
    "messages and no template": (
        "x.jsonl",
        '{"prompt": [{"role": "user", "content": "a"}]}\n',
        {},
        "the tokenizer has none",
    ),
    "a huge prompt": (
        "x.jsonl",
        '{"prompt": "' + "a" * 3000 + '"}\n',
        {},
        ":1: the prompt has 3000 tokens, data.max_prompt_tokens is 512",
    ),
    "huge prompts alone": (
        "x.jsonl",
        '{"prompt": "aaaa"}\n',
        {"data.max_prompt_tokens": 2, "data.over_long": "drop"},
        "all 1 prompts are longer",
    ),
    "no such nested column": (
        "x.jsonl",
        GOOD,
        {"data.columns": {"answer": "reward_model.truth"}},
        "data.columns.answer: unknown column 'reward_model.truth'",
    ),
    "a ragged table": ("x.csv", "prompt,answer\na,1,2\n", {}, ":2: 3 fields"),
    "a table of latin-1": ("x.csv", "prompt\nä\n".encode("latin-1"), {}, ":2: not UTF-8"),
    "a cut table": ("x.csv", 'prompt\n"a\n', {}, "a quote is not closed"),
    "a column twice": ("x.csv", "prompt,prompt\na,b\n", {}, "column 'prompt' is there twice"),
    "an unknown kind": ("x.txt", "a\n", {}, "unknown scheme 'txt'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_data_is_one_clear_line(run, write, name):
    file, content, options, message = WRONG[name]
    with pytest.raises(RlframeError) as caught:
        run(write(content, file), **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["no.jsonl", "no.csv", "no.parquet", "folder.jsonl", "no"])
def test_data_that_is_not_there_is_one_clear_line(run, tmp_path, place):
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(
        RlframeError, match="cannot read data file|names no kind|pip install"
    ) as one:
        run(tmp_path / place)
    assert "\n" not in str(one.value)


def with_template(model: Path, folder: Path) -> Path:
    """The model with a chat template."""
    from transformers import AutoTokenizer

    shutil.copytree(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    return folder


def test_parquet_of_verl_with_chat_prompts(run, tmp_path, model):
    pa = pytest.importorskip("pyarrow", reason="needs the extra 'parquet'")
    import pyarrow.parquet as pq

    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"a{i}"}],
            "reward_model": {"ground_truth": str(i)},
        }
        for i in range(3)
    ]
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(RlframeError, match="the tokenizer has none"):
        run(path)
    seen = run(path, "number", model=with_template(model, tmp_path / "chat"))
    assert seen.figures["reward/number/mean"] >= 0
    assert seen.figures["prompt_length/mean"] == len("usera0assistant")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(RlframeError, match="no whole Parquet file") as caught:
        run(path)
    assert "\n" not in str(caught.value)


# --- rewards --------------------------------------------------------------------------------------


async def later(response):
    return 0.25


def plain_later(response):
    return later(response)


class Callable:
    def __call__(self, response):
        return 0.25


class Floatable:
    def __float__(self):
        return 0.25


VALUES = {
    "int": (1, 1),
    "bool": (True, 1),
    "numpy": (np.float32(0.25), 0.25),
    "numpy bool": (np.bool_(True), 1),
    "numpy array of one": (np.array([0.25]), 0.25),
    "torch": (torch.tensor(0.25), 0.25),
    "torch with gradient": (torch.tensor([0.25], requires_grad=True), 0.25),
    "torch bfloat16": (torch.tensor(0.25, dtype=torch.bfloat16), 0.25),
    "Decimal": (Decimal("0.25"), 0.25),
    "Fraction": (Fraction(1, 4), 0.25),
    "own number": (Floatable(), 0.25),
    "parts": ({"a": 1, "b": np.float64(-0.75)}, 0.25),
    "parts, one abstains": ({"a": 0.25, "b": None}, 0.25),
}


@pytest.mark.parametrize("name", VALUES)
def test_numbers_of_every_kind(run, write, name):
    value, mean = VALUES[name]
    assert run(write(GOOD), lambda response: value).figures["critic/rewards/mean"] == mean


@pytest.mark.parametrize("function", [later, plain_later, Callable()])
def test_functions_of_every_kind(run, write, function):
    assert run(write(GOOD), function).figures["critic/rewards/mean"] == 0.25


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_lists_of_every_kind(run, write, kind):
    seen = run(write(GOOD), lambda responses: kind([0.25] * len(responses)))
    assert seen.figures["critic/rewards/mean"] == 0.25


def stops(responses):
    return [next(iter(())) for _ in [1]]


def leaves(response):
    raise SystemExit(2)


def fails(response):
    return 1 / 0


def waits(response):
    threading.Event().wait(30)


async def waits_later(response):
    import asyncio

    await asyncio.sleep(30)


async def yields_later(response):
    yield 1


FAULTS = {
    "str": (lambda response: "1", "returned str '1', not a number"),
    "bytes": (lambda response: b"1", "returned bytes"),
    "nan": (lambda response: math.nan, "returned nan, not a finite number"),
    "inf": (lambda response: np.inf, "returned inf, not a finite number"),
    "beyond float32": (lambda response: 1e39, "returned 1e+39, not a finite number"),
    "Decimal nan": (lambda response: Decimal("sNaN"), "not a number"),
    "complex": (lambda response: 1j, "not a number"),
    "list": (lambda response: [1.0], "returned list"),
    "dict of a dict": (lambda response: {"a": {"b": 1}}, "returned dict"),
    "empty dict": (lambda response: {}, "an empty mapping"),
    "dict of numbers": (lambda response: {1: 2}, "a mapping with the key 1"),
    "tensor of two": (lambda response: torch.ones(2), "of several elements"),
    "a generator": (lambda response: (x for x in "a"), "returned generator"),
    "an async generator": (yields_later, "returned async_generator"),
    "too few": (lambda responses: [1.0], "returned 1 rewards for 2 responses"),
    "too many": (lambda responses: [1.0] * 3, "returned 3 rewards for 2 responses"),
    "a generator of a group": (lambda responses: (1 for _ in responses), "not a list of 2"),
    "a set of a group": (lambda responses: {1.0, 2.0}, "returned set, not a list of 2"),
    "no value of a group": (lambda responses: None, "returned NoneType, not a list of 2"),
    "raises": (fails, "raised ZeroDivisionError: division by zero"),
    "raises StopIteration": (stops, "StopIteration"),
    "exits": (leaves, "raised SystemExit: 2"),
    "hangs": (waits, "timed out"),
    "hangs later": (waits_later, "timed out"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_reward_shows_the_sample(run, write, name):
    function, message = FAULTS[name]
    with pytest.raises(RewardError) as caught:
        run(write(GOOD), function, **{"reward.timeout_s": 0.3 if "hangs" in name else 60.0})
    text = str(caught.value)
    assert message in text
    assert "x.jsonl:1" in text
    assert "'ab'" in text
    assert "response: " in text


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda answr: 1, "parameter 'answr'.*Did you mean 'answer'"),
        (lambda response, prompts: 1, "mixes 'response'"),
        (lambda: 1, "takes no argument"),
        (lambda response, /: 1, "positional-only"),
        (int, "is a class|class"),
    ],
)
def test_a_reward_that_cannot_be_called_is_known_before_the_run(run, write, function, message):
    with pytest.raises(RlframeError, match=message) as caught:
        run(write(GOOD), function)
    assert "\n" not in str(caught.value)


def test_rewards_that_all_abstain_end_in_one_line(run, write):
    with pytest.raises(RlframeError, match="had no score") as caught:
        run(write(GOOD), lambda response: None)
    assert "\n" not in str(caught.value)


def test_faults_are_left_out_and_counted_where_that_is_asked_for(run, write):
    path = write(GOOD + '{"prompt": "cd", "answer": "2"}\n')
    calls = iter(range(100))

    def sometimes(response):
        if next(calls) % 2:
            raise ValueError("no")
        return 0.5

    seen = run(path, sometimes, **{"reward.on_error": "skip"})
    assert seen.figures["collect/skipped_episodes"] == 2
    assert seen.figures["critic/rewards/mean"] == 0.5


def test_a_row_without_a_column_that_others_have(run, write):
    path = write(GOOD + '{"prompt": "cd"}\n')
    with pytest.raises(RewardError, match=r"x\.jsonl:2") as caught:
        run(path, lambda response, answer: 1.0)
    assert "unlike the first row" in str(caught.value)
    assert "has the parameter 'answer'" in str(caught.value)
