"""Threads, the folder of runs, disk and shared memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rlframe.doctor.finding import Finding
from rlframe.doctor.site import Site

__all__ = ["disk", "shared_memory", "space", "threads"]

_GIB = 2**30


def threads(site: Site) -> Iterator[Finding]:
    """No more compute threads than cores, and none that spin while they wait."""
    policy = site.environment.get("OMP_WAIT_POLICY", "")
    count = site.environment.get("OMP_NUM_THREADS", "")
    found = f"{site.cores} cores, OMP_NUM_THREADS={count or 'unset'}"
    if policy.upper() == "ACTIVE":
        remedy = "export OMP_WAIT_POLICY=PASSIVE"
        yield Finding("warn", "threads", f"{found}, OMP_WAIT_POLICY=ACTIVE wastes cores", remedy)
    elif count.isdecimal() and int(count) > site.cores:
        yield Finding("warn", "threads", found, f"export OMP_NUM_THREADS={site.cores}")
    else:
        yield Finding("ok", "threads", found)


def disk(site: Site) -> Iterator[Finding]:
    """The folder of runs can be written, and there is room for some."""
    place = site.run_dir.expanduser().absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            yield Finding("ok", "run folder", f"{site.run_dir} can be written")
    except OSError as error:
        found = f"{site.run_dir}: {error.strerror}"
        yield Finding("fail", "run folder", found, "use run.dir=FOLDER")
    remedy = "free some space, or use run.dir=FOLDER on another disk"
    yield space("disk", place, remedy, least=1, enough=5)


def shared_memory(site: Site) -> Iterator[Finding]:
    """Room for what processes share: batches, weights on their way, Ray's objects."""
    if site.shared.is_dir():
        remedy = "in a container: docker run --shm-size=2g"
        yield space("shared memory", site.shared, remedy, least=0.06, enough=1)


def space(subject: str, place: Path, remedy: str, *, least: float, enough: float) -> Finding:
    """GiB that are free in ``place``: a failure below ``least``, a warning below ``enough``."""
    free = shutil.disk_usage(place).free / _GIB
    found = f"{free:.2g} GiB free in {place}" if free < 1 else f"{free:.1f} GiB free in {place}"
    if free >= enough:
        return Finding("ok", subject, found)
    return Finding("fail" if free < least else "warn", subject, found, remedy)
