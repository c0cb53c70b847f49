"""The table of columns."""

from __future__ import annotations

import numpy as np
import pytest

from rlframe import Column
from rlframe.batching.columns import COLUMNS, make_schema


def test_every_column_is_declared_whole():
    for name, column in COLUMNS.items():
        assert column.name == name
        assert column.shape[0] == "B"
        assert set(column.shape[1:]) <= set("PRSK")
        assert np.dtype(column.dtype) is not None
        assert column.writer
        assert column.meaning


def test_ragged_axes():
    axes = {"prompt_ids": "P", "response_ids": "R", "rewards": None, "reward_parts": None}
    assert {name: COLUMNS[name].axis for name in axes} == axes
    assert Column("x", "BRK", "float32", "", "").axis == "R"
    assert Column("x", "BS", "int64", "", "").axis == "S"


def test_schema_takes_further_columns_and_refuses_contradictions():
    extra = Column("answer", "B", "object", "data", "what is right")
    schema = make_schema([extra], [extra])
    assert schema["answer"] is extra
    assert "answer" not in COLUMNS
    with pytest.raises(ValueError, match="'rewards' is declared as B float32 and as BR float32"):
        make_schema([Column("rewards", "BR", "float32", "me", "per token")])
    with pytest.raises(ValueError, match="'answer'"):
        make_schema([extra], [Column("answer", "B", "int64", "data", "a number")])
