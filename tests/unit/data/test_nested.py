from __future__ import annotations

import pytest

from rlframe.config import DataConfig
from rlframe.data import nested_paths, nested_value, open_dataset
from rlframe.errors import ConfigError, DataError
from rlframe.host.host import PluginHost

ROW = {"a": {"b": {"c": 1}}, "a.x": 2, "list": [{"content": "hi"}, 5], "none": None}


@pytest.mark.parametrize(
    ("path", "value"),
    [("a.b.c", 1), ("a.b", {"c": 1}), ("a.x", 2), ("list.0.content", "hi"), ("list.1", 5)],
)
def test_dots_reach_inside(path, value):
    assert nested_value(ROW, path) == value


@pytest.mark.parametrize(
    "path", ["b", "a.c", "a.b.c.d", "list.2", "list.x", "none.x", "", "list.-1"]
)
def test_what_is_not_there_is_a_key_error(path):
    with pytest.raises(KeyError):
        nested_value(ROW, path)


def test_paths_are_listed():
    assert nested_paths(ROW) == ["a", "a.b", "a.b.c", "a.x", "list", "none"]


def test_data_columns_give_further_names(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"prompt": "1", "reward_model": {"ground_truth": "2"}}\n'
        '{"prompt": "3", "reward_model": {"truth": "4"}}\n'
    )
    config = DataConfig("x:y", columns={"answer": "reward_model.ground_truth", "prompt": "prompt"})
    rows = open_dataset(str(path), PluginHost().load(), config)
    assert rows[0] == {"prompt": "1", "reward_model": {"ground_truth": "2"}, "answer": "2"}
    with pytest.raises(DataError) as caught:
        rows[1]
    text = f"{path}:2: data.columns.answer: unknown column 'reward_model.ground_truth'"
    assert str(caught.value).startswith(text)
    assert "Did you mean 'reward_model.truth'" in str(caught.value)
    assert rows.where(1) == f"{path}:2"
    with pytest.raises(ConfigError, match=r"made by data\.columns"):
        type(rows).open("x:y")
