"""What the checks are given: places, ports and variables of the machine, or of a test."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

__all__ = ["Site"]


def _requirements() -> tuple[str, ...]:
    """What the installed package asks for; of a bare checkout nothing is known."""
    try:
        return tuple(requires("rlframe") or ())
    except PackageNotFoundError:
        return ()


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class Site:
    """The machine, as far as the checks look at it.

    ``run_dir`` is where runs are written, ``shared`` where shared memory is mounted (a folder that
    is not there is not looked at), ``ports`` are ports that shall be free on ``address``,
    ``environment`` the variables, ``cores`` those that this process may use, ``requirements``
    what the package asks for, as in its metadata.
    """

    run_dir: Path = Path("runs")
    shared: Path = Path("/dev/shm")
    ports: tuple[int, ...] = ()
    address: str = "127.0.0.1"
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cores: int = field(default_factory=_cores)
    requirements: tuple[str, ...] = field(default_factory=_requirements)
