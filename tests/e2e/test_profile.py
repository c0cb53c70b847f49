"""``perf/mfu`` of each step, and torch's profile of the steps that were chosen."""

from __future__ import annotations

import json

from tests.e2e.test_schedulers_run import run


def test_chosen_steps_are_profiled_and_every_step_has_its_share_of_the_peak(tmp_path):
    done = run(tmp_path, "run", {"name": "sync"}, **{"run.profile_steps": [2, 4]})
    traces = sorted(done.glob("profile/*/*.json"))
    assert [str(one.relative_to(done)) for one in traces] == [
        "profile/step-000002/rank-0.json",
        "profile/step-000004/rank-0.json",
    ]
    names = {one.get("name") for one in json.loads(traces[0].read_text())["traceEvents"]}
    assert any("mm" in str(name) for name in names)
    assert any("Backward" in str(name) for name in names)
    lines = [json.loads(line) for line in (done / "metrics.jsonl").read_text().splitlines()]
    shares = [line["perf/mfu"] for line in lines if "timing_s/step" in line]
    assert len(shares) == 4
    assert all(0 < share < 1 for share in shares)
    peaks = [line["perf/worker_memory_peak_gb"] for line in lines if "timing_s/step" in line]
    assert 0.05 < peaks[0] <= peaks[-1] == max(peaks)
    assert not any("perf/device_memory_peak_gb" in line for line in lines)  # on a CPU
