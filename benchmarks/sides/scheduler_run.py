"""One run of a scheduler; what its timeline and its log say, as JSON.

Arguments: a JSON object with ``fit`` (keywords of ``rlframe.fit``), ``skip`` (steps at the start
that are not counted).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile

import rlframe
from rlframe.timeline import read_timeline, report


def _stages(steps: list[dict[str, float]]) -> dict[str, float]:
    """Mean seconds of generation, of publishing, and of what else is in a step."""

    def mean(name: str) -> float:
        return statistics.mean(one[f"timing_s/{name}"] for one in steps)

    found = {"gen": mean("gen"), "sync": mean("update_weights")}
    return {**found, "train": max(mean("step") - sum(found.values()), 0.0)}


def main() -> None:
    asked = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        options = {"logger": ["jsonl"], **asked["fit"]}
        options["run"] = {"dir": folder, "name": "run", "save_every": 0, **options.get("run", {})}
        done = rlframe.fit(**options)
        lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line) for line in lines]
        steps = [one for one in steps if "timing_s/step" in one][asked["skip"] :]
        kept = [s for s in read_timeline(done.run_dir) if s.step > asked["skip"]]
        found = report(kept)
    print(
        json.dumps(
            {
                "step_s": statistics.median(one["timing_s/step"] for one in steps),
                "mean_s": statistics.mean(one["timing_s/step"] for one in steps),
                "stages": _stages(steps),
                "staleness": max(one["training/staleness/max"] for one in steps),
                "idle": {name: round(use.idle, 3) for name, use in found.pools.items()},
                "path_s": {name: round(s, 3) for name, s in found.path_s.items()},
                "seconds": found.seconds,
            }
        )
    )


if __name__ == "__main__":
    main()
