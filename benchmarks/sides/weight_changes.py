"""How many weights a step of the shipped task changes, as float32 and as bfloat16, and what a delta
of them costs: the main job of rlframe for some steps, looked at before and after every update."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rlframe
from rlframe_plugins.codecs.delta import DeltaCodec
from rlframe_strategies.engine import CausalLMEngine

FILE = "RLFRAME_BENCH_CHANGES"


class Watched(CausalLMEngine):
    """Compares the weights before and after an update."""

    def update(self, batch: Any, plan: Any) -> Any:
        """See the base."""
        before = {name: view.clone() for name, view in self._strategy.views().items()}
        result = super().update(batch, plan)
        after = self._strategy.views()
        row = {}
        for kind in (torch.float32, torch.bfloat16):
            old, new = (bits(tensors, kind) for tensors in (before, after))
            data = DeltaCodec().encode(new, old)
            label = str(kind).removeprefix("torch.")
            row[f"{label}_changed"] = float((old != new).mean())
            row[f"{label}_delta_share"] = 1.0 if data is None else len(data) / new.nbytes
        row["rows"] = float(len(batch))
        with open(os.environ[FILE], "a") as file:
            file.write(json.dumps(row) + "\n")
        return result


def bits(tensors: Any, kind: torch.dtype) -> Any:
    flat = torch.cat([tensor.reshape(-1).to(kind) for tensor in tensors.values()])
    return flat.view(torch.uint8).numpy().view(np.uint32 if kind.itemsize == 4 else np.uint16)


def main() -> None:
    steps, rate = int(sys.argv[1]), float(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        seen = os.environ[FILE] = f"{folder}/seen.jsonl"
        rlframe.fit(
            "grpo",
            model={"engine": f"{__file__}:Watched"},
            steps=steps,
            optim={"lr": rate},
            run={"dir": folder, "name": "bench", "save_every": 0, "validate_every": 0},
            logger=["jsonl"],
        )
        rows = [json.loads(line) for line in Path(seen).read_text().splitlines()]
    print(json.dumps({"steps": rows}))


if __name__ == "__main__":
    main()
