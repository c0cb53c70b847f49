"""Which columns share an object of Ray's store; no Ray runs here."""

from __future__ import annotations

import numpy as np
import pytest

from rlframe.batching.packed import Packed

pytest.importorskip("ray")

from rlframe_plugins.transfer import ray as module


def handles(*tokens):
    columns = {
        f"c{number}": Packed(np.zeros(count, np.int64), np.array([count]))
        for number, count in enumerate(tokens)
    }
    engine = module.RayTransfer()
    return engine, engine.describe(columns)


def test_small_columns_share_an_object_and_large_ones_do_not(monkeypatch):
    monkeypatch.setattr(module, "_TOGETHER", 10_000)
    engine, found = handles(100, 100, 2000, 100, 1100, 100)
    assert engine.bundles(found) == [("c0", "c1"), ("c2",), ("c3", "c4"), ("c5",)]


def test_columns_in_their_handles_are_in_no_object():
    engine = module.RayTransfer()
    found = engine.describe({"rewards": Packed(np.zeros(3, np.float32))})
    assert engine.bundles(found) == []


def test_neighbours_are_read_as_a_view_of_the_object():
    engine, found = handles(6)
    handle = found["c0"]
    values = np.arange(6)
    whole = module._rows(handle, values, np.array([0]))
    assert np.shares_memory(whole.values, values)
    rows = Packed(values, np.array([1, 2, 3]))
    handle = engine.describe({"c0": rows})["c0"]
    assert np.shares_memory(module._rows(handle, values, np.array([1, 2])).values, values)
    assert module._rows(handle, values, np.array([1, 2])).values.tolist() == [1, 2, 3, 4, 5]
    apart = module._rows(handle, values, np.array([2, 0]))
    assert not np.shares_memory(apart.values, values)
    assert apart.values.tolist() == [3, 4, 5, 0]
    view = handle.view(np.array([2, 0]))
    assert module._rows(view, values, np.array([1, 0])).values.tolist() == [0, 3, 4, 5]


def test_opaque_columns_have_objects_of_their_own():
    """A reader of texts on another node fetches no tokens with them."""
    texts = np.empty(4, object)
    texts[:] = ["some long text" * 20, "another" * 30, "x" * 500, None]
    tokens = Packed(np.arange(8), np.array([2, 2, 2, 2]))
    columns = {
        "a": tokens,
        "prompt_text": Packed(texts),
        "b": tokens,
        "response_text": Packed(texts),
    }
    engine = module.RayTransfer()
    found = engine.describe(columns)
    assert engine.bundles(found) == [("a", "b"), ("prompt_text", "response_text")]
    assert engine.stored(columns["a"]) is tokens.values
    assert engine.stored(columns["prompt_text"]).rows(np.array([2])).tolist() == ["x" * 500]
