"""SmolLM2-135M-Instruct from its GGUF file as a float32 folder that both sides load."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rlframe.models.gguf import dequantised


def make(gguf: str, folder: str) -> None:
    shutil.copytree(dequantised(Path(gguf)), folder)


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2])
    print("{}")
