from __future__ import annotations

import json
import math

import numpy as np
import torch

from rlframe_plugins.loggers.jsonl import JsonlLogger


def started(run_dir, first_step=0) -> JsonlLogger:
    logger = JsonlLogger()
    logger.start(str(run_dir), None, 10, first_step)
    return logger


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_is_a_line_as_soon_as_it_is_done(tmp_path):
    logger = started(tmp_path)
    logger.log(1, {"a/b": 0.1, "n": 3})
    logger.log(2, {"a/b": np.float32(0.5), "t": torch.tensor(2)})
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 1, "a/b": 0.1, "n": 3},
        {"step": 2, "a/b": 0.5, "t": 2},
    ]
    logger.close()


def test_the_file_is_strict_json(tmp_path):
    logger = started(tmp_path)
    logger.log(1, {"nan": math.nan, "inf": np.float64("inf"), "x": torch.tensor(math.nan)})
    logger.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text) == {"step": 1, "nan": None, "inf": None, "x": None}


def test_samples_have_a_file_of_their_own(tmp_path):
    logger = started(tmp_path)
    messages = [{"role": "user", "content": "é"}]
    logger.samples(3, [{"prompt": messages, "reward": math.nan}, {"prompt": "p", "reward": 1.0}])
    logger.close()
    assert lines(tmp_path / "samples.jsonl") == [
        {"step": 3, "prompt": messages, "reward": None},
        {"step": 3, "prompt": "p", "reward": 1.0},
    ]
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_a_resume_drops_later_entries_and_a_line_that_was_cut_off(tmp_path):
    logger = started(tmp_path)
    for step in range(6):
        logger.log(step, {"x": step})
        logger.samples(step, [{"y": step}])
    logger.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "x"')
    again = started(tmp_path, first_step=3)
    again.log(4, {"x": 44})
    again.close()
    assert [(e["step"], e["x"]) for e in lines(tmp_path / "metrics.jsonl")] == [
        *((0, 0), (1, 1), (2, 2), (3, 3)),
        (4, 44),
    ]
    assert [e["y"] for e in lines(tmp_path / "samples.jsonl")] == [0, 1, 2, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "samples.jsonl"]


def test_a_cut_line_alone_is_dropped_too(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2')
    logger = started(tmp_path, first_step=5)
    logger.log(6, {})
    logger.close()
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 6}]


def test_closing_twice_or_unopened_is_nothing(tmp_path):
    JsonlLogger().close()
    logger = started(tmp_path)
    logger.close()
    logger.close()
