"""The packages beside this file as wheels, built from copies so that nothing is left here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = tuple(sorted(path.name for path in HERE.glob("rlframe-*")))
"""Two strangers: a method with its reward and environment, an engine with a scheduler."""


def copied(package: str, folder: Path) -> Path:
    """A copy of a package's sources."""
    target = folder / package
    shutil.copytree(HERE / package, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def wheel(source: Path, folder: Path) -> Path:
    """Build the wheel as a front end would, with the build tools of this environment."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob(f"{source.name.replace('-', '_')}-*.whl")
    return built
