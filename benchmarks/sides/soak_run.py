"""The driver of a soak: one run on Ray that goes on wherever it was. Argument: keywords as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import rlframe


def main() -> None:
    (Path(os.environ["SOAK_FOLDER"]) / f"driver-{os.getpid()}").touch()
    rlframe.fit(**json.loads(sys.argv[1]), resume="auto")


if __name__ == "__main__":
    main()
