from __future__ import annotations

import numpy as np

from rlframe.recording.memory import device_peak_gb, peak_memory_gb
from rlframe.recording.metrics import Stopwatch, validation_metrics
from rlframe.requests import Episode, Group, Request, Row, Segment


def episode(reward, parts, mask=(True, False, True)):
    count = len(mask)
    rows = [Segment([1], [2] * count, list(mask), [0.0] * count, [0] * count, [0] * count)]
    return Episode(Request((1,)), rows, "stop", "x", reward, parts)


def test_validation_counts_lengths_by_mask_and_parts_where_they_are():
    groups = [
        Group(Row((1,), {}), [episode(1.0, {"a": 1.0}), episode(0.0, {"a": 0.0, "b": 3.0})]),
        Group(Row((1,), {}), [episode(None, {})]),
    ]
    found = validation_metrics(groups)
    assert found == {
        "val/episodes": 2.0,
        "val/reward/mean": 0.5,
        "val/response_length/mean": 2.0,
        "val/reward/a/mean": 0.5,
        "val/reward/b/mean": 3.0,
    }


def test_nothing_scored_has_no_mean():
    assert validation_metrics([Group(Row((1,), {}), [])]) == {"val/episodes": 0.0}


def test_stages_add_up_and_start_again():
    clock = Stopwatch()
    for _ in range(2):
        with clock.stage("gen"):
            pass
    assert list(clock.take()) == ["timing_s/gen"]
    assert clock.take() == {}


def test_the_peak_grows_with_what_is_held():
    before = peak_memory_gb()
    held = np.ones(2**25)
    assert peak_memory_gb() >= before
    assert peak_memory_gb() > held.nbytes / 2**30
    assert device_peak_gb("cpu") == 0.0
