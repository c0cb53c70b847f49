"""Real allocations and real seconds on this machine's CPU, beside what the mapper predicts."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from rlframe.config import ModelConfig, OptimConfig
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import random_micro, tiny_model
from rlframe.testing.strategy_runs import summed_loss
from rlframe_plugins.mappers.calibrate import calibrate
from rlframe_plugins.mappers.catalogue import Hardware, hardware_of, load_catalogue
from rlframe_plugins.mappers.dataflow import Unit
from rlframe_plugins.mappers.grid import SCHEMES, Grid
from rlframe_plugins.mappers.memory import kv_bytes, states
from rlframe_plugins.mappers.models import ModelShape, load_model
from rlframe_plugins.mappers.simulate_generate import simulate_generate
from rlframe_plugins.mappers.simulate_infer import simulate_infer
from rlframe_plugins.mappers.simulate_train import simulate_train
from rlframe_plugins.mappers.workload import Lengths, Workload
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS
from rlframe_plugins.rollouts.torch.cache import KVCache
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.single import SingleStrategy

Case = tuple[int, int, int, int]
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "num_hidden_layers": 4,
}


def live_bytes() -> int:
    """Bytes of all distinct tensor storages that Python can reach."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        try:
            tensor = thing if isinstance(thing, torch.Tensor) else None
        except ReferenceError:
            continue
        if tensor is None:
            continue
        for one in (tensor, tensor.grad if tensor.is_leaf else None):
            local = getattr(one, "_local_tensor", one)
            if local is not None and local.device.type == "cpu":
                storage = local.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def allocations(rank: RankInfo, target: Any, path: Path) -> dict[str, int]:
    """Bytes that building, a backward pass and a step add on one rank."""
    empty = live_bytes()
    strategy = target(target.Config(), rank)
    spec = ModelSpec(str(path), ModelConfig(path=str(path)), optim=OptimConfig(), optim_steps=4)
    strategy.build(spec)
    weights = live_bytes() - empty
    micro = random_micro(rows=2)
    strategy.forward_backward([micro], ("logprobs", "entropy"), summed_loss)
    gradients = live_bytes() - empty - weights
    strategy.step(1.0)
    optimizer = live_bytes() - empty - weights
    strategy.close()
    return {"weights": weights, "gradients": gradients, "optimizer": optimizer}


def _way(scheme: str, d: int = 1, micro: int = 1, t: int = 1) -> Grid:
    return Grid.of([(1, d * t, t, 1, d, SCHEMES.index(scheme), 1, 0, micro)])


def measured_memory() -> list[dict[str, Any]]:
    """States of tiny models under single and fsdp, and a KV cache: allocated and predicted."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("qwen2", "llama"):
            path = tiny_model(Path(folder) / kind, kind, **SIZES)
            shape = load_model(str(path))
            cases = [("single", SingleStrategy, 1, "ddp"), ("fsdp", FSDPStrategy, 2, "fsdp")]
            for name, target, world, scheme in cases:
                seen = run_ranks(allocations, world, target, path)
                expected = states(shape, _way(scheme, world), 4)
                for part, value in expected.items():
                    most = max(rank[part] for rank in seen)
                    rows.append(_row(f"{kind} {name} {world} {part}", most, float(value[0])))
            rows += [_kv_row(kind, path, shape), _blocks_row(kind, shape)]
    return rows


def _row(what: str, measured: float, predicted: float) -> dict[str, Any]:
    error = predicted / measured - 1
    return {"what": what, "measured": measured, "predicted": predicted, "error": error}


def _kv_row(kind: str, path: Path, shape: ModelShape) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        cache = model(torch.ones(3, 50, dtype=torch.long), use_cache=True).past_key_values
    held = sum(
        t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values)
    )
    one = float(kv_bytes(shape, np.ones(1), np.ones(1), 4)[0])
    return _row(f"{kind} kv cache", held, 3 * 50 * one)


def _blocks_row(kind: str, shape: ModelShape) -> dict[str, Any]:
    """The cache of the embedded rollout engine, which lies in blocks of tokens."""
    cache = KVCache(shape.layers, shape.kv_heads, shape.head_dim)
    cache.reserve(64, 64, torch.empty(0))
    held = sum(
        t.nbytes for layer in range(shape.layers) for t in (cache.keys(layer), cache.values(layer))
    )
    one = float(kv_bytes(shape, np.ones(1), np.ones(1), 4)[0])
    return _row(f"{kind} kv cache in blocks", held, 64 * BLOCK_TOKENS * one)


# --- seconds ---------------------------------------------------------------------------------

CASES = [
    # hidden, layers, rows, sequence
    (128, 4, 8, 64),
    (256, 4, 8, 64),
    (256, 8, 8, 64),
    (384, 6, 4, 128),
    (512, 4, 8, 64),
    (256, 4, 16, 128),
    (384, 4, 2, 64),
    (512, 8, 4, 96),
]
FITTED = (1, 4, 6)
"""Cases whose seconds scale the stages; all others are predicted."""


def _model(hidden: int, layers: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3 // 8 * 8,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        vocab_size=2048,
    )
    return LlamaForCausalLM(config)


def _seconds(action: Callable[[], None], rounds: int = 4) -> float:
    """Least seconds of the core, which others may use as well."""
    action()
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        action()
        taken.append(time.process_time() - started)
    return min(taken)


def _measure(hidden: int, layers: int, rows: int, sequence: int) -> dict[str, float]:
    model = _model(hidden, layers)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(3, 2048, (rows, sequence))

    def infer() -> None:
        with torch.no_grad():
            model(ids, use_cache=False)

    def train() -> None:
        model(ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def generate() -> None:
        half = ids[:, : sequence // 2]
        model.generate(half, max_new_tokens=sequence // 2, min_new_tokens=sequence // 2,
                       do_sample=False, pad_token_id=0)  # fmt: skip

    return {"prepare": _seconds(infer), "learn": _seconds(train), "collect": _seconds(generate, 2)}


def _predict(case: Case, hardware: Hardware, folder: str) -> dict[str, float]:
    hidden, layers, rows, sequence = case
    path = Path(folder) / "-".join(map(str, case))
    _model(hidden, layers).config.save_pretrained(path)
    shape = load_model(str(path))
    scored = Workload(prompts=rows, prompt_tokens=0, responses=Lengths((float(sequence),)))
    half = Workload(
        prompts=rows, prompt_tokens=sequence // 2, responses=Lengths((float(sequence // 2),))
    )
    unit = Unit("policy", shape, infers=True, trained=True, minibatch_rows=rows)
    way = _way("ddp", micro=rows)
    return {
        "prepare": float(simulate_infer(unit, way, hardware, scored).seconds[0]),
        "learn": float(simulate_train(unit, way, hardware, scored).seconds[0]),
        "collect": float(simulate_generate(unit, way, hardware, half).seconds[0]),
    }


def _cpu_hardware() -> Hardware:
    """This machine as calibrated, without the overheads of workers that are not used here."""
    data = yaml.safe_load(calibrate())
    none = {"value": 0.0, "basis": "measured", "source": "no workers in this benchmark"}
    for name in ("stage_s", "call_s", "wake_s", "decode_round_s", "optimizer_step_s"):
        data["constants"][name] = none
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump(data))
        file.flush()
        return hardware_of(load_catalogue(file.name), 1, 1, "cpu")


def _ranks(values: Sequence[float]) -> Any:
    return np.argsort(np.argsort(values)).astype(float)


def measured_times() -> dict[str, Any]:
    """Scale the stages on two cases, predict the others: error and rank correlation."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hardware = _cpu_hardware()
    with tempfile.TemporaryDirectory() as folder:
        predicted = [_predict(case, hardware, folder) for case in CASES]
    measured = [_measure(*case) for case in CASES]
    stages = ("prepare", "learn", "collect")
    scale = {
        s: np.exp(np.mean([np.log(measured[i][s] / predicted[i][s]) for i in FITTED]))
        for s in stages
    }
    rows = [
        {
            "case": case,
            "stage": s,
            "measured_s": m[s],
            "predicted_s": float(p[s] * scale[s]),
            "error": float(p[s] * scale[s] / m[s] - 1),
        }
        for i, (case, m, p) in enumerate(zip(CASES, measured, predicted, strict=True))
        if i not in FITTED
        for s in stages
    ]
    by_stage = {}
    for stage in stages:
        mine = [r for r in rows if r["stage"] == stage]
        a, b = (_ranks([r[k] for r in mine]) for k in ("measured_s", "predicted_s"))
        by_stage[stage] = float(np.corrcoef(a, b)[0, 1])
    error = float(np.median([abs(r["error"]) for r in rows]))
    return {"rows": rows, "scale": {k: float(v) for k, v in scale.items()},
            "rank_correlation_by_stage": by_stage, "median_error": error,
            "rank_correlation": min(by_stage.values())}  # fmt: skip
