"""Some steps of the main job (`make fit`), noting after each one what this process holds."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from typing import Any, ClassVar

from parts import resident_gb, status_gb

import rlframe
from rlframe.interfaces.loop import Callback


class Held(Callback):
    """Resident memory (GB) and objects that Python's collector knows of after each step."""

    noted: ClassVar[list[tuple[float, int]]] = []

    def on_step_end(self, orchestrator: Any, metrics: Any) -> None:
        gc.collect()
        self.noted.append((resident_gb(), len(gc.get_objects())))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        done = rlframe.fit(
            "grpo",
            strategy="fsdp",
            steps=int(sys.argv[1]),
            run={"dir": folder, "name": "main", "save_every": 50, "validate_every": 0},
            logger=["jsonl"],
            callback=[Held],
        )
        lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
    rewards = [json.loads(line).get("critic/rewards/mean") for line in lines]
    rewards = [reward for reward in rewards if reward is not None]
    print(
        json.dumps(
            {
                "resident_gb": [one[0] for one in Held.noted],
                "objects": [one[1] for one in Held.noted],
                "peak_gb": status_gb("VmHWM"),
                "reward": rewards,
            }
        )
    )


if __name__ == "__main__":
    main()
