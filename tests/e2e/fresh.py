"""Commands in environments of their own, where nothing is downloaded or on the way by chance."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1", "PYTHONPATH": ""}


def run(*command, cwd: Path) -> str:
    """What a command that succeeds wrote."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def new_venv(folder: Path, *outer: str) -> tuple[Path, Path]:
    """Python of a new environment, and its folder of packages, with these lines in a .pth there."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    where = "import site; print(site.getsitepackages()[0])"
    packages = Path(run(python, "-c", where, cwd=folder.parent).strip())
    (packages / "outer.pth").write_text("\n".join(outer) + "\n")
    return python, packages
