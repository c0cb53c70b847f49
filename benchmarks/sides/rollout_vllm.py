"""vLLM's own engine on a CPU over the cases of `benchmarks/rollout.py`; in its own environment."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rollout_case import Answer, Case, lengths_of, prompts_of, report

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def main() -> None:
    from vllm import LLM

    spec = json.loads(sys.argv[1])
    llm = LLM(
        spec["model"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=spec["max_batch"],
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
    )
    report(spec, lambda case: generate(llm, case))


def generate(llm: Any, case: Case) -> list[Answer]:
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    prompts = [{"prompt_token_ids": prompt} for prompt in prompts_of(case)]
    params = [
        SamplingParams(temperature=1.0, max_tokens=n, min_tokens=n, logprobs=0, detokenize=False)
        for n in lengths_of(case)
    ]
    done = llm.generate(prompts, params, use_tqdm=False)
    found = [one.outputs[0] for one in done]
    return [
        (
            list(one.token_ids),
            [at[t].logprob for t, at in zip(one.token_ids, one.logprobs, strict=True)],
        )
        for one in found
    ]


if __name__ == "__main__":
    main()
