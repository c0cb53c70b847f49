"""All checks by name, in the order in which they are run and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rlframe.doctor.devices import devices
from rlframe.doctor.finding import Finding
from rlframe.doctor.machine import disk, shared_memory, threads
from rlframe.doctor.network import ports
from rlframe.doctor.site import Site
from rlframe.doctor.software import packages, plugins, python
from rlframe.errors import ConfigError, unknown_name

__all__ = ["CHECKS", "examine", "next_command"]

CHECKS: Mapping[str, Callable[[Site], Iterator[Finding]]] = {
    "python": python,
    "packages": packages,
    "plugins": plugins,
    "devices": devices,
    "threads": threads,
    "disk": disk,
    "shared-memory": shared_memory,
    "ports": ports,
}
"""Name to check; only "devices" imports torch."""


def examine(site: Site, only: Sequence[str] = ()) -> Iterator[Finding]:
    """Run the checks that are named, or all of them. Raises ``ConfigError`` for an unknown one."""
    for name in only:
        if name not in CHECKS:
            raise ConfigError(f"--only: {unknown_name('check', name, CHECKS)}")
    for name, check in CHECKS.items():
        if not only or name in only:
            yield from check(site)


def next_command(findings: Sequence[Finding], only: Sequence[str] = ()) -> str:
    """What to do now: mend the first failure, look at the rest, or train."""
    failed = [finding for finding in findings if finding.state == "fail"]
    if failed:
        return f"{failed[0].remedy}; then rlframe doctor"
    return "rlframe doctor" if only else "rlframe fit"
