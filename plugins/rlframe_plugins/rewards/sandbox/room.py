"""A root folder of its own for a program: the interpreter, read-only, and a small /tmp.

Needs a process that is the first of a fresh process namespace and has the rights to mount.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from rlframe_plugins.rewards.sandbox import kernel

__all__ = [
    "WORK",
    "counts_by_namespace",
    "enter_room",
    "fresh_work",
    "split_off",
    "system_paths",
    "unused_id",
]

WORK = "/tmp"
"""The only folder that a program can write."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache")
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTE = 1, 2, 4, 8
_INNER_ID = 1000
_INODES = 10_000


def system_paths() -> list[str]:
    """Where programs and libraries of the system lie."""
    return [path for path in _SYSTEM if os.path.exists(path)]


def split_off() -> int:
    """Give the next child a process namespace; an ordinary user also needs a user namespace.

    Returns the ids of programs: 0 where this process must not change them. Raises Refused.
    """
    if not os.path.isdir("/proc/self"):
        raise kernel.Refused(0, "/proc is not mounted")
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        kernel.unshare(kernel.NEW_PID)
        return unused_id()
    kernel.unshare(kernel.NEW_USER | kernel.NEW_PID)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_INNER_ID} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{_INNER_ID} {group} 1")
    return 0


def unused_id() -> int:
    """A user id of nobody else: limits of processes count by user."""
    return 0x40000000 + os.getpid()


def enter_room(readable: Sequence[str], size_mb: int) -> None:
    """Move this process to the room; nothing else of the machine can be named afterwards.

    Raises Refused.
    """
    kernel.unshare(kernel.NEW_MOUNT | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    sources = {path: os.path.realpath(path) for path in readable}
    links = {path: os.readlink(path) for path in readable if os.path.islink(path)}
    kernel.mount("tmpfs", WORK, "tmpfs", kernel.MS_NOSUID, "mode=755,size=1m")
    for name in ("old", "new"):
        os.mkdir(f"{WORK}/{name}")
    kernel.pivot_root(WORK, f"{WORK}/old")
    kernel.mount("tmpfs", "/new", "tmpfs", kernel.MS_NOSUID, "mode=755,size=1m")
    for path, source in sorted(sources.items()):
        if path not in links or os.path.isabs(links[path]):
            _show(f"/old{source}", f"/new{path}")
        else:
            os.symlink(links[path], f"/new{path}")
    _devices()
    os.mkdir("/new/proc")
    kernel.mount("proc", "/new/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.restrict_mount("/new/proc", _READ_ONLY)
    Path(f"/new{WORK}").mkdir(exist_ok=True)
    os.chdir("/new")
    kernel.pivot_root(".", ".")
    kernel.unmount(".")
    os.chdir("/")
    kernel.restrict_mount("/", _READ_ONLY, below=False)
    _mount_work(size_mb)


def fresh_work(size_mb: int) -> None:
    """Forget all files that programs wrote. Raises Refused."""
    os.chdir("/")
    kernel.unmount(WORK)
    _mount_work(size_mb)


def _mount_work(size_mb: int) -> None:
    options = f"mode=1777,size={size_mb}m,nr_inodes={_INODES}"
    kernel.mount("tmpfs", WORK, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)


def _show(source: str, target: str) -> None:
    """Bind a folder or a file, read-only."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    kernel.mount(source, target, "", kernel.MS_BIND | kernel.MS_REC)
    kernel.restrict_mount(target, _READ_ONLY | _NO_SUID | _NO_DEVICES)


def _devices() -> None:
    os.mkdir("/new/dev")
    for name in _DEVICES:
        Path(f"/new/dev/{name}").touch()
        kernel.mount(f"/old/dev/{name}", f"/new/dev/{name}", "", kernel.MS_BIND)
        kernel.restrict_mount(f"/new/dev/{name}", _NO_SUID | _NO_EXECUTE)


def counts_by_namespace() -> bool:
    """Whether the limit of processes counts those of a user namespace only (Linux 5.14)."""
    major, minor = platform.release().split(".")[:2]
    return (int(major), int("".join(c for c in minor if c.isdigit()) or 0)) >= (5, 14)
