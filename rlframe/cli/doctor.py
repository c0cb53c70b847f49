"""``rlframe doctor``: what this machine has, what is missing, and the next command."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlframe.errors import ConfigError

__all__ = ["add_doctor_command", "doctor"]


def add_doctor_command(subcommands: Any) -> None:
    """Add the command to the parser."""
    command = subcommands.add_parser(
        "doctor",
        help="check this machine, and say the next command",
        description="Checks versions, plugins, devices, NCCL or gloo, threads, disk, shared "
        "memory and ports. Exits 0 when rlframe can run here (warnings too), 1 when something "
        "fails, 2 for wrong arguments.",
    )
    add = command.add_argument
    add("--dir", default="runs", help="folder that runs are written to")
    add("--port", type=int, action="append", default=[], help="a port that shall be free")
    add("--address", default="127.0.0.1", help="address on which --port shall be free")
    add("--only", default="", metavar="CHECK,..", help="only these; torch is for devices alone")
    add("--json", action="store_true", help="findings, ok and next as JSON")
    command.set_defaults(run=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """Print all findings; 1 when one of them is a failure."""
    from rlframe.doctor.examine import examine, next_command
    from rlframe.doctor.site import Site

    for number in arguments.port:
        if not 1 <= number <= 65535:
            raise ConfigError(f"--port must be 1 to 65535, not {number}")
    only = [name for name in arguments.only.split(",") if name]
    site = Site(Path(arguments.dir), ports=tuple(arguments.port), address=arguments.address)
    findings = []
    for finding in examine(site, only):
        if not arguments.json:
            print(finding, flush=True)
        findings.append(finding)
    failed = sum(finding.state == "fail" for finding in findings)
    after = next_command(findings, only)
    if arguments.json:
        print(
            json.dumps({"ok": not failed, "findings": list(map(asdict, findings)), "next": after})
        )
    elif failed:
        print(f"{failed} failed. Next: {after}")
    else:
        print(f"{'no failure' if only else 'rlframe can run here'}. Next: {after}")
    return 1 if failed else 0
