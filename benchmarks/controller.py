"""Our controller beside verl's RayWorkerGroup and DataProto, and beside Ray's store alone.

``python benchmarks/controller.py [--json]``. Two sides, each with a Ray of its own, two workers and
four; verl 0.9.1 lives in an environment that this makes. Both stay up and obey in turn, so that a
noisy machine disturbs them alike. 512 rows of 512 + 512 tokens lie in six columns (17.8 MB):

- calls that do nothing, one after the other, and in flight together;
- there and back: the columns go to two workers and come back as new ones. Ours is timed up to the
  handles, as a run uses it, and, for the targets, until all columns are in the controller's hands,
  as verl's are. verl's is timed as it comes, as its trainers dispatch, and with its option to
  serialise by numpy;
- all columns in, one out; all columns pulled by four workers;
- the floor: each buffer put into the store and got, and what was got once more, in one process;
- columns made by workers, then echoed by workers, at 1, 4 and 16 times the rows: the bytes that
  Ray deserialises in the controller for each, and its peak memory over what it had before. Of what
  is made the controller is told the length of every row, which it plans with.

Where a target is missed a profile says where our time goes, beside what Ray alone takes.
Last, 8,192 sequences are dealt to 128 ranks (``benchmarks/fan_out.py`` says more).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from common import ROOT, main, need, rival_python, spread, target
from fan_out import dealing
from sides.controller_shared import nbytes

ROWS, SCALES = 512, (1, 4, 16)
VERL = "verl==0.9.1"
NEEDS = (
    f"torch=={torch.__version__.split('+')[0]}",
    "codetiming",
    "hydra-core",
    "numpy<2.4",
    "omegaconf",
    "packaging",
    "ray==2.60.0",
    "tensordict",
    "transformers==5.20.0",
)
"""What importing verl's single controller needs beside verl itself."""
WAYS = {"verl": {}, "verl_mesh": {"mesh": True}, "verl_numpy": {"method": "numpy"}}
"""How verl's round trip is asked for."""


class Side:
    """A process that obeys orders."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process, self._name = process, name

    def ask(self, order: str, **named: Any) -> Any:
        """What the side answers."""
        self.tell(order, **named)
        return self.answer()

    def tell(self, order: str, **named: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"order": order, **named}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the side {self._name} ended; what it said is above")
        return json.loads(line)


@contextmanager
def started(name: str, python: str | Path) -> Iterator[Side]:
    """A side, ended in the end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    script = ROOT / "benchmarks" / "sides" / f"controller_{name}.py"
    process = subprocess.Popen(
        [str(python), str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**env, "HF_HUB_OFFLINE": "1"},
    )
    try:
        yield Side(process, name)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--calls", type=int, default=100, help="calls of a turn")
    parser.add_argument("--times", type=int, default=3, help="transfers of a turn")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    need("ray", extras="ray")
    pythons = {"rlframe": Path(sys.executable), "verl": rival_python("verl-ray", NEEDS, VERL)}
    with ExitStack() as stack:
        sides = {n: stack.enter_context(started(n, python)) for n, python in pythons.items()}
        for side in sides.values():
            side.tell("open", rows=ROWS)
        for side in sides.values():
            side.answer()
        one_turn(sides, arguments, {})
        found: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            one_turn(sides, arguments, found)
        looked = sides["rlframe"].ask("profile", count=arguments.calls, times=arguments.times)
        scales = {
            n: [side.ask("scale", rows=ROWS * s) for s in SCALES] for n, side in sides.items()
        }
    dealt = dealing(arguments.rounds)
    results = {
        "bytes_of_the_columns": nbytes(ROWS),
        **{name: spread(values) for name, values in found.items()},
        "mb_per_s_there_and_back": {
            name: 2 * nbytes(ROWS) / 1e6 / spread(found[f"round_trip_s/{name}"])["median"]
            for name in ("rlframe", *WAYS)
        },
        "rows": [ROWS * scale for scale in SCALES],
        "scales": scales,
        "dealing": dealt,
    }
    found_targets = targets(results)
    missed = [one["name"] for one in found_targets if not one["holds"]]
    if missed:
        results["profile"] = {"why": missed, **looked}
    return results, found_targets


def one_turn(
    sides: dict[str, Side], arguments: argparse.Namespace, found: dict[str, list[float]]
) -> None:
    """Every figure once, sides side by side."""

    def note(name: str, values: Any) -> None:
        found.setdefault(name, []).extend(values if isinstance(values, list) else [values])

    ours, theirs, times = sides["rlframe"], sides["verl"], arguments.times
    for name, side in sides.items():
        note(f"calls_per_s/{name}", side.ask("calls", count=arguments.calls))
    note("calls_per_s/rlframe_in_flight", ours.ask("calls_in_flight", count=arguments.calls))
    note("round_trip_s/floor", ours.ask("floor", times=times))
    note("round_trip_s/rlframe", ours.ask("round_trip", times=times))
    note("round_trip_s/rlframe_handles", ours.ask("round_trip", times=times, read=False))
    for name, way in WAYS.items():
        note(f"round_trip_s/{name}", theirs.ask("round_trip", times=times, **way))
    for order in ("one_column", "pull"):
        for name, side in sides.items():
            note(f"{order}_s/{name}", side.ask(order, times=times))


def targets(results: dict[str, Any]) -> list[dict[str, Any]]:
    def median(name: str) -> float:
        return float(results[name]["median"])

    ours, scales = median("round_trip_s/rlframe"), results["scales"]["rlframe"]
    calls = median("calls_per_s/rlframe") / median("calls_per_s/verl")
    grown = scales[-1]["there_and_back"] / scales[0]["there_and_back"]
    share = scales[-1]["made"] / results["bytes_of_the_columns"] / SCALES[-1]
    free = results["dealing"]["free"]
    return [
        target("calls that do nothing, times verl's rate", calls, 1),
        target("there and back, times verl's speed", median("round_trip_s/verl") / ours, 5),
        target(
            "there and back, times the floor", ours / median("round_trip_s/floor"), 2, below=True
        ),
        target("one column out, times verl's speed", ratio(results, "one_column_s"), 1),
        target("rows pulled by 4 workers, times verl's speed", ratio(results, "pull_s"), 1),
        target("bytes that the controller reads, 16 x the rows", grown, 1.1, below=True),
        target("share of what is made that the controller reads", share, 0.001, below=True),
        target("dealing 8,192 to 128, s", free["s"]["median"], 0.2, below=True),
        target("dealing 8,192 to 128, uneven", free["uneven"]["max"], 0.01, below=True),
    ]


def ratio(results: dict[str, Any], name: str) -> float:
    """How many times as fast as verl."""
    return float(results[f"{name}/verl"]["median"] / results[f"{name}/rlframe"]["median"])


if __name__ == "__main__":
    main(__doc__ or "", measure, options, quick={"rounds": 1})
