"""What the rollout engine counts and holds is in the figures of each step."""

from __future__ import annotations

import json

import pytest

import rlframe
from tests.e2e.small import make_model, make_questions, options


@pytest.mark.timeout(120)
def test_each_step_has_its_own_counts_and_the_gauges_of_its_end(tmp_path):
    """Two steps of 8 requests: counts are not those since the start; nothing runs any more."""
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    rlframe.fit(**options(tmp_path, model, questions))
    text = (tmp_path / "runs" / "run" / "metrics.jsonl").read_text()
    steps = [row for row in map(json.loads, text.splitlines()) if "timing_s/step" in row]
    assert len(steps) == 2
    for row in steps:
        assert row["rollout/requests"] == 8
        asked = row["rollout/prefix_hit_tokens"] + row["rollout/prefill_tokens"]
        assert row["rollout/prefix_hit_ratio"] == row["rollout/prefix_hit_tokens"] / asked == 0.5
        assert row["rollout/tokens_per_s"] > 0
        assert 0 < row["rollout/running/mean"] <= 8
        assert row["rollout/running"] == row["rollout/kv_used_tokens"] == 0
        assert row["rollout/kv_total_tokens"] == 131072
        assert row["rollout/preemptions"] == 0
