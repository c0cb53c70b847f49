"""The same GRPO steps by TRL's GRPOTrainer: seconds a step, peak memory."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time

import transformers.models.llama.modeling_llama  # noqa: F401  before memory is first looked at
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

IMPORTS_GB = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    return [float(sum(ids) % 7) for ids in completion_ids]


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def on_step_begin(self, *_: object, **__: object) -> None:
        if not self.ends:
            self.ends.append((time.perf_counter(), time.process_time()))

    def on_step_end(self, *_: object, **__: object) -> None:
        self.ends.append((time.perf_counter(), time.process_time()))


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
            per_device_train_batch_size=rows // spec["accumulate"],
            gradient_accumulation_steps=spec["accumulate"],
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
    pairs = list(zip(clock.ends, clock.ends[1:], strict=False))[1:]
    found = {
        "step_s": [after[0] - before[0] for before, after in pairs],
        "cpu_s": [after[1] - before[1] for before, after in pairs],
        "memory_gb": {
            "imports": IMPORTS_GB,
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        },
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
