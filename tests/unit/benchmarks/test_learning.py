"""The learning benchmark's figures and plots, without its runs."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "benchmarks" / "learning.py"


@pytest.fixture(scope="module")
def learning():
    spec = importlib.util.spec_from_file_location("benchmark_learning", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_mean_and_spread_over_seeds(learning):
    runs = [
        {"curve": [0.5, 0.7], "val_before": 0.5, "val_after": 0.9},
        {"curve": [0.7, 0.7], "val_before": 0.5, "val_after": 0.8},
    ]
    found = learning.summary(runs)
    assert found["reward"]["mean"] == [0.6, 0.7]
    assert found["reward"]["spread"] == [0.1414, 0.0]
    assert found["val_after"] == {"mean": 0.85, "spread": 0.0707}
    assert learning.summary(runs[:1])["val_before"] == {"mean": 0.5, "spread": 0.0}


def test_plots_are_svg_with_a_line_a_method(learning):
    curve = {"mean": [0.5, 0.9, 1.2], "spread": [0.1, 0.0, 0.2]}
    for names in (["grpo"], [f"m{n}" for n in range(20)]):
        root = ElementTree.fromstring(learning.plot(dict.fromkeys(names, curve)))
        lines = [one for one in root if one.tag.endswith("polyline")]
        assert len(lines) == len(names)
        heights = [float(p.split(",")[1]) for p in lines[0].attrib["points"].split()]
        assert heights == sorted(heights, reverse=True)
        assert 0 < heights[-1] < heights[0] < learning.HEIGHT


def test_every_method_that_samples_alone_is_run(learning):
    names = learning.online_methods()
    assert {"grpo", "dapo", "remax", "reinforce++"} <= set(names)
    assert not {"sft", "dpo", "rm"} & set(names)
