"""Memory over 200 steps of the main job: `rlframe fit --algo grpo --strategy fsdp`.

Every step ends with a look at the process: resident memory, and the objects (tensors among them)
that Python's collector knows of. Growth compares the last tenth of the steps with the tenth that
ends at half of them, when pools and caches have their size. Snapshots are written on the way.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from common import main, side, target


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=200, help="steps of the main job, at least 40")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    steps = arguments.steps
    if steps < 40:
        raise SystemExit("--steps must be at least 40: the first half is the warm-up")
    found = side(sys.executable, "main_job.py", str(steps), threads=1)
    assert len(found["resident_gb"]) == steps
    tenth, warm = steps // 10, steps // 2
    results: dict[str, Any] = {"steps": steps, "peak_gb": found["peak_gb"]}
    for name in ("resident_gb", "objects"):
        values = found[name]
        early = statistics.mean(values[warm - tenth : warm])
        late = statistics.mean(values[-tenth:])
        results[name] = {"warm": early, "end": late, "every_tenth": values[:: max(1, tenth)]}
    results["reward"] = [statistics.mean(found["reward"][:tenth])]
    results["reward"].append(statistics.mean(found["reward"][-tenth:]))
    resident, objects = results["resident_gb"], results["objects"]
    a_step = (objects["end"] - objects["warm"]) / (steps - warm)
    return results, [
        target("resident memory, growth", resident["end"] / resident["warm"] - 1, 0.02, below=True),
        target("objects that a step leaves behind", a_step, 0.1, below=True),
    ]


if __name__ == "__main__":
    main(__doc__ or "", measure, options, quick={"steps": 40})
