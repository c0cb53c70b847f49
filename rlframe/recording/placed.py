"""``placement.json``: which role of a run lives in which pool, on which mesh."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rlframe import __version__
from rlframe.place import Place
from rlframe.recording.files import PLACEMENT
from rlframe.snapshots.durable import replace_text

__all__ = ["write_placement"]


def write_placement(run_dir: Path, place: Place) -> None:
    """Write the placement that the run was started with, and the version that wrote it."""
    placement = place.placement
    values = {
        "rlframe": __version__,
        "device": place.info.device,
        "pools": {
            name: {"nodes": pool.nodes, "devices": pool.devices}
            for name, pool in placement.pools.items()
        },
        "pool_of": dict(placement.pool_of),
        "mesh_of": {role: dataclasses.asdict(m) for role, m in placement.mesh_of.items()},
    }
    replace_text(run_dir / PLACEMENT, json.dumps(values, indent=1) + "\n")
