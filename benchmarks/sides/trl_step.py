"""The same GRPO steps by TRL's GRPOTrainer: seconds a step, peak memory."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    return [float(sum(ids) % 7) for ids in completion_ids]


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_begin(self, *_: object, **__: object) -> None:
        if not self.ends:
            self.ends.append(time.perf_counter())

    def on_step_end(self, *_: object, **__: object) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    spec = json.loads(sys.argv[1])
    clock = Clock()
    rows = spec["batch"] * spec["samples"]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=rows,
            num_generations=spec["samples"],
            max_completion_length=spec["new"],
            generation_kwargs={"min_new_tokens": spec["new"]},
            max_steps=spec["steps"],
            learning_rate=1e-6,
            beta=0.0,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=spec["model"],
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": p} for p in spec["prompts"]]),
            callbacks=[clock],
        )
        trainer.train()
    steps = [b - a for a, b in zip(clock.ends, clock.ends[1:], strict=False)][1:]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"step_s": steps, "peak_gb": peak}))


if __name__ == "__main__":
    main()
