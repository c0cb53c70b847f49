from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from rlframe.errors import SnapshotError
from rlframe.requests import Sampling
from rlframe.snapshots.rng import rng_state, set_rng_state
from rlframe.snapshots.snapshot import decode_state, encode_state

KEYS = st.one_of(st.text(max_size=4), st.integers(), st.booleans(), st.tuples(st.integers()))
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=12,
)


def through_disk(state: object) -> object:
    value, tensors = encode_state(state)
    return decode_state(json.loads(json.dumps(value)), load(save(tensors)))


def same_types(left: object, right: object) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same_types(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same_types, left, right))
    return left == right


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_plain_values_come_back_with_their_types(value):
    assert same_types(through_disk(value), value)


def test_tensors_arrays_and_numbers_of_numpy_come_back():
    state = {
        "a.b": torch.arange(6.0).reshape(2, 3).t(),
        "a": {"b": torch.tensor(7, dtype=torch.int32)},
        "bf16": torch.ones(2, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 3),
        "key": np.arange(5, dtype=np.uint32),
        "scalar": np.float64(0.1),
        "zero_d": np.array(True),
        "big_endian": np.arange(3, dtype=">i8"),
        "$": 1,
    }
    back = through_disk(state)
    assert list(back) == list(state)
    for name in ("a.b", "bf16", "empty"):
        assert back[name].dtype == state[name].dtype
        assert torch.equal(back[name], state[name])
    assert torch.equal(back["a"]["b"], state["a"]["b"])
    assert back["key"].dtype == np.uint32
    np.testing.assert_array_equal(back["key"], state["key"])
    assert type(back["scalar"]) is np.float64
    assert back["scalar"] == 0.1
    assert back["zero_d"].shape == ()
    np.testing.assert_array_equal(back["big_endian"], [0, 1, 2])


def test_not_a_number_and_infinities_come_back():
    back = through_disk([math.nan, math.inf, -math.inf, -0.0])
    assert math.isnan(back[0])
    assert back[1:3] == [math.inf, -math.inf]
    assert math.copysign(1, back[3]) == -1


def test_the_state_is_a_copy():
    weights = torch.zeros(3)
    _, tensors = encode_state({"w": weights})
    weights.fill_(1)
    assert tensors["state.w"].sum() == 0


@pytest.mark.parametrize(
    "value", [{1, 2}, b"x", object(), np.array(["a"]), {"f": print}, {object(): 1}, Sampling()]
)
def test_other_values_are_refused_with_their_place(value):
    with pytest.raises(SnapshotError, match="state.algorithm.x"):
        encode_state({"algorithm": {"x": value}})


@pytest.mark.parametrize(
    "value",
    [
        {"$": "pickle", "items": []},
        {"$": "tuple", "items": {}},
        {"$": "tensor", "name": "gone"},
        {"$": "tuple", "items": [], "more": 1},
        {"$": ["tuple"], "items": []},
    ],
)
def test_reading_is_strict(value):
    with pytest.raises(SnapshotError):
        decode_state(value, {})


def test_random_states_come_back():
    before = rng_state()
    try:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        np.random.standard_normal()
        state = through_disk(rng_state())

        def draws() -> list[float]:
            return [random.random(), float(np.random.standard_normal()), float(torch.rand(()))]

        wanted = draws()
        assert draws() != wanted
        set_rng_state(state)
        assert draws() == wanted
    finally:
        set_rng_state(before)
