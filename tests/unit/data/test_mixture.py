from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.config import DataConfig
from rlframe.data import Mixture, PromptStream, anchor_uri, first_rows, open_dataset, read_rows
from rlframe.data.mixture import parse_mixture
from rlframe.errors import ConfigError, DataError, SnapshotError
from rlframe.host.host import PluginHost
from rlframe.interfaces.data import Dataset


class Rows(Dataset):
    """Row i asks for i in a prompt of ``lengths[i]`` tokens."""

    def __init__(self, name: str, lengths: list[int]) -> None:
        self.name, self.lengths = name, lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict:
        return {"prompt": "x" * self.lengths[index], "id": f"{self.name}{index}"}

    def where(self, index: int) -> str:
        return f"{self.name}:{index + 1}"

    @property
    def fingerprint(self) -> str:
        return f"{self.name}{self.lengths}"

    @classmethod
    def open(cls, uri: str) -> Rows:
        raise NotImplementedError


class Letters:
    eos_token_id = None

    def __call__(self, text: str, **_: object) -> dict:
        return {"input_ids": [ord(c) for c in text]}


def mixture(*sources: tuple[float, str, list[int]]) -> Mixture:
    return Mixture([(w, f"x:{name}.y", Rows(name, lengths)) for w, name, lengths in sources])


def stream(dataset: Dataset, seed: int = 1, **options) -> PromptStream:
    config = DataConfig(train="x:y", max_prompt_tokens=9, **options)
    return PromptStream(dataset, Letters(), config, seed=seed)


def names(rows) -> list[str]:
    return [row.columns["id"] for row in rows]


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("mix:a.jsonl + b.csv", [(1, "a.jsonl"), (1, "b.csv")]),
        ("mix:3*a.jsonl + 0.5 * csv:b c.csv?x=1", [(3, "a.jsonl"), (0.5, "csv:b c.csv?x=1")]),
        ("mix: 2*a+b.jsonl", [(2, "a+b.jsonl")]),
    ],
)
def test_a_mixture_is_written_in_one_line(uri, parts):
    assert parse_mixture(uri) == parts


@pytest.mark.parametrize("uri", ["mix:", "mix:a + ", "mix:0*a + b", "mix:mix:a + b", "mix:3*"])
def test_what_is_no_mixture_is_an_error(uri):
    with pytest.raises(ConfigError, match=r"is no source of a mixture: write mix:WEIGHT\*URI"):
        parse_mixture(uri)


def test_shares_hold_after_every_draw():
    one = stream(mixture((3, "a", [1] * 5), (1, "b", [1] * 7)))
    count = Counter()
    for number in range(1, 200):
        (row,) = one.draw(1)
        count[row.columns["id"][0]] += 1
        assert abs(count["a"] - 0.75 * number) <= 1


def test_each_prompt_comes_once_in_an_epoch_of_its_source():
    one = stream(mixture((3, "a", [1] * 5), (1, "b", [1] * 7)))
    seen = names(one.draw(140))
    of_a, of_b = ([n for n in seen if n[0] == name] for name in "ab")
    for start in range(0, 100, 5):
        assert sorted(of_a[start : start + 5]) == [f"a{i}" for i in range(5)]
    for start in range(0, 35, 7):
        assert sorted(of_b[start : start + 7]) == [f"b{i}" for i in range(7)]
    assert of_a[:5] != of_a[5:10]
    assert one.epoch == 5


def test_sources_of_one_length_have_orders_of_their_own():
    one = stream(mixture((1, "a", [1] * 12), (1, "b", [1] * 12)))
    seen = names(one.draw(24))
    assert [n[1:] for n in seen if n[0] == "a"] != [n[1:] for n in seen if n[0] == "b"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.3, 1, 2.5]),
            st.lists(st.sampled_from([1, 99]), min_size=1, max_size=5).filter(lambda x: 1 in x),
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_resuming_at_every_position_continues_the_run(sources, draws, seed):
    def fresh() -> PromptStream:
        parts = [(w, name, rows) for name, (w, rows) in zip("abc", sources, strict=False)]
        return stream(mixture(*parts), seed, over_long="drop")

    whole = fresh()
    states, steps = [whole.state_dict()], []
    for count in draws:
        steps.append(whole.draw(count))
        states.append(whole.state_dict())
    for position, state in enumerate(states):
        again = fresh()
        again.load_state_dict(json.loads(json.dumps(state)))
        assert [again.draw(count) for count in draws[position:]] == steps[position:]


def test_dropped_prompts_do_not_change_the_shares():
    one = stream(mixture((1, "a", [1, 99, 99, 99]), (1, "b", [1] * 4)), over_long="drop")
    assert Counter(n[0] for n in names(one.draw(20))) == {"a": 10, "b": 10}
    assert one.dropped >= 27


def test_a_source_of_over_long_prompts_alone_is_an_error_and_not_a_loop():
    one = stream(mixture((1, "a", [1]), (1, "b", [99, 99])), over_long="drop")
    with pytest.raises(DataError, match="all 2 prompts are longer"):
        one.draw(2)


@pytest.mark.parametrize(
    "other",
    [
        mixture((2, "a", [1] * 5), (1, "b", [1] * 7)),
        mixture((1, "b", [1] * 7), (1, "a", [1] * 5)),
        Rows("a", [1] * 12),
    ],
)
def test_another_mixture_is_refused_on_resume(other):
    state = stream(mixture((1, "a", [1] * 5), (1, "b", [1] * 7))).state_dict()
    with pytest.raises(SnapshotError, match="dataset has changed"):
        stream(other).load_state_dict(state)


def test_validation_reads_every_source_once():
    rows = list(read_rows(mixture((1, "a", [1, 1]), (9, "b", [1])), Letters(), DataConfig("x:y")))
    assert names(rows) == ["a0", "a1", "b0"]
    assert [row.source for row in rows] == ["a:1", "a:2", "b:1"]


def test_rows_say_where_they_come_from():
    mixed = mixture((1, "a", [1]), (1, "b", [1]))
    assert [row["data_source"] for row in first_rows(mixed)] == ["a", "b"]
    twice = Mixture([(1, "x:1/a.y", Rows("a", [1])), (1, "x:2/a.y?z=1", Rows("b", [1]))])
    assert [row["data_source"] for row in first_rows(twice)] == ["a#1", "a#2"]
    for index in (-1, 2):
        with pytest.raises(IndexError):
            mixed[index]


def test_files_of_several_kinds_are_opened_and_anchored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.jsonl").write_text('{"q": {"text": "1"}, "data_source": "own"}\n')
    (tmp_path / "c.csv").write_text("q.text,n\n2,3\n")
    host, config = PluginHost().load(), DataConfig("x:y", columns={"prompt": "q.text"})
    uri = "mix:3*a b.jsonl + csv:c.csv"
    rows = open_dataset(uri, host, config)
    assert [(r["prompt"], r["data_source"]) for r in first_rows(rows)] == [("1", "own"), ("2", "c")]
    anchored = anchor_uri(uri, host)
    assert anchored == f"mix:3*jsonl:{tmp_path}/a b.jsonl + 1*csv:{tmp_path}/c.csv"
    monkeypatch.chdir("/")
    assert open_dataset(anchored, host, config).fingerprint == rows.fingerprint
    with pytest.raises(ConfigError, match="opened by rlframe"):
        Mixture.open(uri)
