"""The process around a program's tests: reads one request, isolates, replies a line a test.

It ends, with all that it started, when its input does: so also with the process that asked.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rlframe_plugins.rewards.sandbox import filters, kernel, room
from rlframe_plugins.rewards.sandbox.files import remove_tree
from rlframe_plugins.rewards.sandbox.limits import Limits, limit_this_process
from rlframe_plugins.rewards.sandbox.program import Program, run_program
from rlframe_plugins.rewards.sandbox.tree import Namespace, Tree, threads_of_user

__all__ = ["main"]

_CONTROL = 0


def main() -> None:
    """Serve the request on standard input."""
    os.umask(0o022)
    request = json.loads(_line())
    serve = {"namespaces": _in_namespaces, "filters": _in_filters, "process": _in_process}
    try:
        serve[request["isolation"]](request, Limits(**request["limits"]))
    except EOFError:
        return
    except (kernel.Refused, RuntimeError, OSError) as error:
        _say({"unavailable": f"{error}"})


def _line() -> bytes:
    """One line, and not a byte more: what follows is the end of the input."""
    parts = []
    while part := os.read(_CONTROL, 65536):
        parts.append(part)
        if part.endswith(b"\n"):
            break
    return b"".join(parts)


def _say(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


# --- ways to isolate ------------------------------------------------------------------------------


def _in_namespaces(request: dict[str, Any], limits: Limits) -> None:
    """A room of its own, as the first process of a namespace of processes: its end is their end."""
    readable = [*request["readable"], *room.system_paths()]
    uid = room.split_off()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        kernel.end_with_parent()
        room.enter_room(_outermost(readable), limits.disk_mb)
        alone = uid or room.counts_by_namespace()

        def restrict() -> None:
            _become(uid, limits, 0 if alone else threads_of_user(os.getuid()))
            filters.refuse_calls(signals=False)

        program = _program(request, room.WORK, limits, restrict)
        for reply in _replies(request, program, Namespace()):
            _say(reply)
            room.fresh_work(limits.disk_mb)
    except EOFError:
        return
    except (kernel.Refused, RuntimeError, OSError) as error:
        _say({"unavailable": f"{error}"})
    finally:
        os._exit(0)


def _in_filters(request: dict[str, Any], limits: Limits) -> None:
    """Seccomp and Landlock on an ordinary process."""
    kernel.take_orphans()
    filters.files_can_be_refused()
    uid = room.unused_id() if os.geteuid() == 0 else 0
    readable = [*request["readable"], *room.system_paths()]
    readable += [f"/dev/{name}" for name in ("zero", "full", "random", "urandom")]

    def in_folder(folder: str) -> Program:
        def restrict() -> None:
            _become(uid, limits, 0 if uid else threads_of_user(os.getuid()))
            filters.allow_files(readable, [folder, os.devnull])
            filters.refuse_calls(signals=True)

        return _program(request, folder, limits, restrict)

    _in_folders(request, in_folder, uid)


def _in_process(request: dict[str, Any], limits: Limits) -> None:
    """Limits alone: the program has the rights of whoever runs this."""
    linux = sys.platform == "linux"
    if linux:
        kernel.take_orphans()

    def in_folder(folder: str) -> Program:
        def restrict() -> None:
            limit_this_process(limits, threads_of_user(os.getuid()))
            if linux:
                kernel.end_with_parent()

        return _program(request, folder, limits, restrict)

    _in_folders(request, in_folder, 0)


# --- common ---------------------------------------------------------------------------------------


def _become(uid: int, limits: Limits, running: int) -> None:
    """In a program's process: another user, where one is given, without rights, with limits."""
    limit_this_process(limits, running)
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.end_with_parent()
    kernel.drop_rights()


def _in_folders(request: dict[str, Any], in_folder: Any, uid: int) -> None:
    """Each test in a folder of its own, removed afterwards."""
    below = Tree()
    deadline = time.monotonic() + request["limits"]["total_s"]
    for test in request["tests"]:
        folder = tempfile.mkdtemp(prefix=f"rlframe-code-{os.getppid()}-", dir=request["folder"])
        try:
            if uid:
                os.chown(folder, uid, uid)
            _say(_reply(in_folder(folder), test, deadline, below))
        finally:
            remove_tree(folder)


def _replies(request: dict[str, Any], program: Program, below: Namespace) -> Any:
    deadline = time.monotonic() + request["limits"]["total_s"]
    for test in request["tests"]:
        yield _reply(program, test, deadline, below)


def _reply(
    program: Program, test: dict[str, Any], deadline: float, below: Namespace | Tree
) -> dict[str, Any]:
    left = deadline - time.monotonic()
    if left <= 0:
        return {"why": "time", "code": 0, "output": ""}
    for name, text in test["files"].items():
        Path(program.folder, name).write_bytes(text.encode(errors="replace"))
    started = dataclasses.replace(program, command=(*program.command, *test["arguments"]))
    input_ = test["input"].encode(errors="replace")
    ended = run_program(started, input_, min(left, program.limits.test_s), below, _CONTROL)
    output = ended.output.decode(errors="replace")
    return {"why": ended.why, "code": ended.code, "output": output}


def _program(request: dict[str, Any], folder: str, limits: Limits, restrict: Any) -> Program:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": folder,
        "TMPDIR": folder,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return Program(tuple(request["command"]), environment, folder, limits, restrict)


def _outermost(paths: list[str]) -> list[str]:
    """Paths without those that lie below another one."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{above}/") for above in kept):
            kept.append(path)
    return kept
