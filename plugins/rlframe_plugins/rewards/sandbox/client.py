"""Asking for a box: the side of the process that trains."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rlframe import RewardError
from rlframe_plugins.rewards.sandbox.limits import Limits

__all__ = ["ISOLATIONS", "Isolation", "Outcome", "Test", "Unavailable", "run_tests"]

Isolation = Literal["namespaces", "filters", "process"]
ISOLATIONS: tuple[Isolation, ...] = ("namespaces", "filters")
"""What isolates, the best first."""
_START_S, _END_S = 60.0, 10.0
_STARTER = "import sys; sys.path.insert(0, {!r}); from {} import main; main()"
_MODULE = "rlframe_plugins.rewards.sandbox.box"


class Unavailable(RewardError):
    """This machine does not let a process isolate programs in that way."""


@dataclasses.dataclass(frozen=True)
class Test:
    """One start of Python: its arguments, its standard input, the files in its folder."""

    arguments: tuple[str, ...]
    input: str = ""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one test: ``why`` names the limit that ended it, empty where none did."""

    why: str
    code: int
    output: str


async def run_tests(
    isolation: Isolation,
    limits: Limits,
    tests: Sequence[Test],
    *,
    packages: bool = False,
) -> list[Outcome]:
    """Run tests one after the other, nothing kept between them.

    ``packages`` lets programs import what is installed beside this interpreter. Cancelling it ends
    the programs. Raises Unavailable, or RewardError where the box itself fails.
    """
    request = {
        "isolation": isolation,
        "limits": dataclasses.asdict(limits),
        "command": _interpreter(packages),
        "readable": _folders(packages),
        "folder": tempfile.gettempdir(),
        "tests": [dataclasses.asdict(test) for test in tests],
    }
    process = await _start()
    try:
        async with asyncio.timeout(limits.total_s + _START_S):
            said, trouble = await _talk(process, json.dumps(request).encode() + b"\n")
    except TimeoutError as error:
        raise RewardError(
            f"the sandbox did not end within {_START_S:g} seconds after its limit: is this machine "
            "overloaded? Set the reward's workers lower"
        ) from error
    finally:
        await _end(process)
    return _read(said, trouble, len(tests))


async def _start() -> Process:
    root = str(Path(__file__).parents[3])
    starter = _STARTER.format(root, _MODULE)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-B", "-c", starter),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={"LANG": "C.UTF-8"},
        cwd="/",
        start_new_session=True,
    )


async def _talk(process: Process, request: bytes) -> tuple[bytes, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        process.stdin.write(request)
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):  # it says why on its error output
        pass
    return await asyncio.gather(process.stdout.read(), process.stderr.read())


async def _end(process: Process) -> None:
    """Close its input, which ends all that it started; kill it where it does not end."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(asyncio.shield(process.wait()), _END_S)
    finally:
        if process.returncode is None:
            process.kill()


def _read(said: bytes, trouble: bytes, count: int) -> list[Outcome]:
    replies: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
    for reply in replies:
        if "unavailable" in reply:
            raise Unavailable(reply["unavailable"])
    if len(replies) != count:
        tail = trouble.decode(errors="replace").strip()[-500:]
        raise RewardError(f"the sandbox ended after {len(replies)} of {count} tests: {tail}")
    return [Outcome(**reply) for reply in replies]


def _interpreter(packages: bool) -> list[str]:
    if packages:
        return [sys.executable, "-I", "-B"]
    return [os.path.realpath(sys.executable), "-I", "-S", "-B"]


def _folders(packages: bool) -> list[str]:
    """What the interpreter reads."""
    folders = [sys.base_prefix, os.path.realpath(sys.base_prefix)]
    if packages:
        folders += [sys.prefix, os.path.realpath(sys.prefix)]
    return folders
