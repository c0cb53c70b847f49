"""``rlframe export RUN DIR``: a folder that ``from_pretrained`` loads."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlframe.errors import ConfigError

__all__ = ["export"]


def export(arguments: argparse.Namespace) -> int:
    """Write the model of a run's last snapshot."""
    run_dir, out_dir = Path(arguments.run_dir), Path(arguments.out_dir)
    if not run_dir.is_dir():
        raise ConfigError(f"there is no run {run_dir}: name a folder that rlframe fit wrote")
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise ConfigError(f"{out_dir} is there and not empty: name a new folder")
    from rlframe.snapshots.export import export as write

    write(run_dir, out_dir, adapter=arguments.adapter)
    print(f"wrote {out_dir}")
    return 0
