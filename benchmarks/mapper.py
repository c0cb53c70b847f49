"""What the auto-mapper is worth: search time, exactness, memory, times, and reported placements.

    python benchmarks/mapper.py --json results.json

Writes ``{machine, results, targets: [{name, value, target, holds}]}``. The constants of the
simulators were fixed before the reported placements were read here, and nothing is fitted to them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from mapper_measured import measured_memory, measured_times
from numpy.typing import NDArray

from rlframe_plugins.mappers.catalogue import load_catalogue, parse_hardware
from rlframe_plugins.mappers.dataflow import ROLLOUT, Unit, units_of
from rlframe_plugins.mappers.grid import RECOMPUTE, SCHEMES, Grid
from rlframe_plugins.mappers.models import ModelShape, load_model
from rlframe_plugins.mappers.planner import make_plans
from rlframe_plugins.mappers.problem import Choices
from rlframe_plugins.mappers.report import summary
from rlframe_plugins.mappers.search import Search
from rlframe_plugins.mappers.simulate_train import simulate_train
from rlframe_plugins.mappers.space import Wishes, build_problem
from rlframe_plugins.mappers.wellknown import WELL_KNOWN
from rlframe_plugins.mappers.workload import Lengths, Workload

Row = dict[str, Any]
DATA = Path(__file__).parent / "mapper_data"
KINDS = {
    "colocate": (("policy", "critic", "reference", "reward"),),
    "split": (("policy", "reference"), ("critic", "reward")),
    "standalone": (("policy",), ("critic",), ("reference",), ("reward",)),
    "three-one": (("policy", "reference", "reward"), ("critic",)),
}


def _units(algo: str, policy: str, critic: str, work: Workload) -> tuple[Unit, ...]:
    body, other = load_model(policy), load_model(critic)
    flow = WELL_KNOWN[algo]
    shapes = {r.name: other if r.model in ("value", "score") else body for r in flow.roles}
    return units_of(flow.roles, shapes, work)


def search_times(large: bool, quick: bool = False) -> list[Row]:
    """Seconds of the exact search, from nothing to the plan, with growth.

    The large ones: small and whole minibatches, a larger model, and a rollout that runs ahead.
    """
    cases = [("ppo", "llama-2-7b", n, 128, None) for n in (2, 4, 8, 16, 32, 64)]
    if quick:
        cases = [case for case in cases if case[2] in (2, 16)]
    else:
        cases.append(("safe-rlhf", "llama-2-7b", 16, 128, None))
    if large:
        for model in ("llama-2-7b", "llama-2-13b", "llama-2-70b"):
            cases += [("safe-rlhf", model, 128, b, s) for b in (128, None) for s in (None, 1)]
    return [_searched(*case) for case in cases]


def _searched(algo: str, model: str, nodes: int, batch: int | None, staleness: int | None) -> Row:
    work = Workload(minibatch_prompts=batch) if batch else Workload()
    hardware = parse_hardware(f"{nodes}x8:a100-80g", load_catalogue())
    wall, cpu = time.perf_counter(), time.process_time()
    units = _units(algo, model, model, work)
    planned = make_plans(units, hardware, work, Wishes(staleness=staleness), plans=1)
    return {
        "algo": algo,
        "model": model,
        "devices": nodes * 8,
        "minibatch_prompts": batch,
        "staleness": staleness,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "step_s": planned.plans[0].seconds,
        "plan": summary(planned.plans[0]),
    }


def reported_placements(overhead: float = 1.0) -> Row:
    """Which of four placements the model likes best, beside the reported one.

    ``overhead`` multiplies the fixed seconds of a stage and of an optimiser step: other values than
    1 say what would have to be true for the crossovers, and count nowhere.
    """
    table = yaml.safe_load((DATA / "reported.yaml").read_text(encoding="utf-8"))
    rows = []
    for row in table["rows"]:
        work = Workload(minibatch_prompts=128)
        hardware = parse_hardware(f"{row['devices'] // 8}x8:{table['hardware']}", load_catalogue())
        slow = {
            n: getattr(hardware.constants, n) * overhead for n in ("stage_s", "optimizer_step_s")
        }
        hardware = replace(hardware, constants=replace(hardware.constants, **slow))
        units = _units("ppo", row["policy"], row["critic"], work)
        wishes = Wishes(together=(frozenset({"policy", ROLLOUT}),))
        problem, _ = build_problem(units, hardware, work, wishes)
        search, names = Search(problem), problem.names
        seconds = {}
        for kind, sets in KINDS.items():
            members = [(*s, ROLLOUT) if "policy" in s else s for s in sets]
            found = search.best_of([[names.index(n) for n in m] for m in members], exact=False)
            seconds[kind] = None if found is None else found.value
        fitting = {k: v for k, v in seconds.items() if v is not None}
        chosen = min(fitting, key=fitting.get) if fitting else None
        rows.append({**row, "chosen": chosen, "step_s": seconds, "agrees": chosen == row["kind"]})
    scores = {
        "mapper": sum(r["agrees"] for r in rows) / len(rows),
        "always colocate": sum(r["kind"] == "colocate" for r in rows) / len(rows),
        "always split": sum(r["kind"] == "split" for r in rows) / len(rows),
    }
    return {"rows": rows, "agreement": scores}


def generation_sizes() -> Row:
    """Collect and transition seconds by generation tensor size, training at t 8 on 16 devices."""
    result = {}
    for model in ("llama-2-7b", "llama-2-13b"):
        work = Workload(minibatch_prompts=128)
        hardware = parse_hardware("2x8:a100-80g@ib-200", load_catalogue())
        units = _units("ppo", model, model, work)
        problem, spaces = build_problem(units, hardware, work)
        policy, rollout = 0, len(units) - 1
        rows = {}
        for size in (1, 2, 4, 8):
            kept = list(problem.choices)
            kept[policy] = _where(kept[policy], _mesh(spaces[policy].grid, 8))
            kept[rollout] = _where(kept[rollout], _mesh(spaces[rollout].grid, size))
            one = replace(problem, choices=tuple(kept))
            found = Search(one).best_of([range(len(units))], exact=False)
            if found is not None:
                way = found.ways[0][rollout]
                rows[size] = {
                    "step_s": found.value,
                    "collect_s": float(problem.choices[rollout].seconds[way, 0]),
                }
        result[model] = {"by_tg": rows, "best_tg": min(rows, key=lambda k: rows[k]["step_s"])}
    return result


def _mesh(grid: Grid, t: int) -> NDArray[np.bool_]:
    return (grid.t == t) & (grid.p == 1)


def _where(choices: Choices, mask: NDArray[np.bool_]) -> Choices:
    """The same ways; those outside the mask made too large to fit."""
    return replace(choices, resident=np.where(mask, choices.resident, np.inf))


def megatron_times() -> list[Row]:
    """The training simulator against published iteration times that it was not fitted to."""
    rows = []
    for row in yaml.safe_load((DATA / "megatron.yaml").read_text(encoding="utf-8"))["rows"]:
        h, t, p = row["hidden"], row["tensor"], row["pipeline"]
        shape = ModelShape(
            row["name"],
            row["layers"],
            h,
            row["heads"],
            row["heads"],
            h // row["heads"],
            8 * h // 3,
            51200,
        )
        nodes = max(t * p // 8, 1)
        hardware = parse_hardware(f"{nodes}x8:a100-80g", load_catalogue())
        # Prompts of no tokens: the head is computed at every position, as in pre-training.
        work = Workload(prompts=row["batch"], prompt_tokens=0, responses=Lengths((2048.0,)))
        unit = Unit("policy", shape, trained=True, minibatch_rows=row["batch"])
        for how in ("full", "selective"):
            way = (
                1,
                t * p,
                t,
                p,
                1,
                SCHEMES.index("megatron"),
                RECOMPUTE.index(how),
                0,
                row["micro"],
            )
            predicted = float(simulate_train(unit, Grid.of([way]), hardware, work).seconds[0])
            rows.append({"model": row["name"], "recompute": how, "reported_s": row[how],
                         "predicted_s": predicted, "error": predicted / row[how] - 1})  # fmt: skip
    return rows


def targets_of(results: Row) -> list[Row]:
    ppo = next(r for r in results["search"] if r["algo"] == "ppo" and r["devices"] == 128)
    rows = [("PPO on 128 devices, seconds of one core", ppo["cpu_s"], 1.0, ppo["cpu_s"] < 1.0)]
    large = [r for r in results["search"] if r["devices"] == 1024]
    if large:
        taken = max(r["cpu_s"] for r in large)
        name = f"Safe-RLHF on 1,024 devices, seconds of one core, worst of {len(large)}"
        rows.append((name, taken, 10.0, taken < 10.0))
    worst = max(abs(r["error"]) for r in results["memory"])
    rows.append(("memory formulas, worst error", worst, 0.1, worst <= 0.1))
    rank = results["times"]["rank_correlation"]
    rows.append(("step times here, rank correlation", rank, 0.9, rank >= 0.9))
    mean = sum(abs(r["error"]) for r in results["megatron"]) / len(results["megatron"])
    rows.append(("published training times, mean error", mean, 0.2, mean <= 0.2))
    scores = results["reported"]["agreement"]
    best = max(scores["always colocate"], scores["always split"])
    rows.append(
        ("agreement with reported placements", scores["mapper"], best, scores["mapper"] > best)
    )
    for model, wanted in (("llama-2-7b", 2), ("llama-2-13b", 4)):
        found = results["generation_sizes"][model]["best_tg"]
        rows.append((f"best generation tensor size of {model}", found, wanted, found == wanted))
    return [dict(zip(("name", "value", "target", "holds"), row, strict=True)) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-", help="as JSON, to a file")
    parser.add_argument(
        "--quick", action="store_true", help="two searches, the constants as they are"
    )
    parser.add_argument("--large", action="store_true", help="also Safe-RLHF on 1,024 devices")
    arguments = parser.parse_args()
    results = {
        "search": search_times(arguments.large, arguments.quick),
        "memory": measured_memory(),
        "times": measured_times(),
        "megatron": megatron_times(),
        "reported": reported_placements(),
        "reported_if_overheads_were": {
            str(x): reported_placements(x) for x in (() if arguments.quick else (10, 30))
        },
        "generation_sizes": generation_sizes(),
    }
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(),
               "python": platform.python_version(), "load": os.getloadavg()[0]}  # fmt: skip
    answer = {"machine": machine, "results": results, "targets": targets_of(results)}
    text = json.dumps(answer, indent=1)
    if arguments.json == "-":
        print(text)
        return 0
    if arguments.json:
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")
    for target in answer["targets"]:
        sign = "ok  " if target["holds"] else "MISS"
        print(f"{sign} {target['name']}: {target['value']:.3g} (target {target['target']:.3g})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
