"""One run of one method on the shipped model: ``python learning_run.py NAME SEED STEPS FOLDER``.

Prints a JSON line: the mean reward of each step, and that of validation before and after.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import rlframe


def main() -> None:
    name, seed, steps, folder = sys.argv[1:]
    done = rlframe.fit(
        name,
        seed=int(seed),
        steps=int(steps),
        run={"dir": folder, "name": f"{name}-{seed}"},
        logger=["jsonl"],
    )
    lines = (Path(done.run_dir) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    curve = [row["critic/rewards/mean"] for row in rows if "critic/rewards/mean" in row]
    figures = {key: done.summary[key] for key in ("val_before", "val_after")}
    print(json.dumps({"curve": curve, **figures}))


if __name__ == "__main__":
    main()
